"""From a device map to resource pools."""

from collections.abc import Callable

from verl.trainer.launch import pools_for, role_place
from verl.trainer.roles import Role, default_roles


def test_roles_of_equal_places_share_a_pool(tiny_run: Callable[..., list[str]]) -> None:
    from verl.config.loader import load_config
    from verl.trainer.checks import checked

    config = checked(
        load_config(
            tiny_run(
                "trainer.worker_group=ray",
                "trainer.device_map={actor: {gpus: 2}, rollout: {type: hf, devices: [cuda:0], node: 1}, "
                "critic: {devices: [cuda:0], node: 1}, ref: {type: cpu}}",
            )
        )
    )
    roles = default_roles(config)
    assert list(roles) == [Role.Actor, Role.Rollout, Role.Critic, Role.RefPolicy]
    pools = pools_for(config, [*map(str, roles), "novelty"])
    assert pools.mapping == {
        "actor": "actor+novelty",  # a role of the user's own lives with the actor
        "novelty": "actor+novelty",
        "rollout": "rollout+critic",
        "critic": "rollout+critic",
        "ref": "ref",
    }
    made = pools.resource_pool_spec
    assert [(pool.process_on_nodes, pool.use_gpu, pool.nodes) for pool in made.values()] == [  # type: ignore[union-attr]
        ([2], True, [None]),
        ([1], True, [1]),
        ([1], False, [None]),
    ]
    assert role_place(config, "ref").type == "cpu"
