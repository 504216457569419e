from pathlib import Path
from typing import Any

import pytest

from verl.config import PPOConfig
from verl.config.device_map import Place, RolePlace, role_places, rollout_is_apart
from verl.config.errors import ConfigError
from verl.config.loader import load_config
from verl.config.validate import notes, validate

DEFAULT = Place("auto", ("all/0", "all/1"))


def places(**device_map: Any) -> dict[str, RolePlace]:
    return role_places(device_map, DEFAULT)


def test_without_a_map_all_roles_are_together() -> None:
    assert set(places().values()) == {RolePlace(DEFAULT)}
    assert not rollout_is_apart(places())


def test_roles_that_are_not_named_live_with_the_actor() -> None:
    found = places(actor={"type": "fsdp", "devices": ["cuda:0", "cuda:1"]}, reward_model={"type": "cpu"})
    actor = Place("cuda", ("cuda:0", "cuda:1"))
    assert found["actor"] == RolePlace(actor, "fsdp")
    assert found["critic"] == found["ref"] == found["rollout"] == RolePlace(actor)
    assert found["rm"] == RolePlace(Place("cpu", ("rm/cpu",)), "cpu")
    assert not rollout_is_apart(found)


def test_only_the_reward_model_is_named() -> None:
    found = places(rm={"devices": ["cpu:0", "cpu:1"], "node": 1, "strategy": "PACK"})
    assert found["actor"].place == found["critic"].place == DEFAULT
    assert found["rm"].place == Place("cpu", ("cpu:0", "cpu:1"), (1,), "PACK")


def test_gpus_count_devices_of_their_own() -> None:
    found = places(actor={"gpus": 2, "node": [0, 1]}, critic={"gpus": 2, "node": [0, 1]})
    assert found["actor"].place.world_size == 4
    assert found["actor"].place != found["critic"].place


def test_equal_devices_are_shared_and_a_process_of_its_own_may_be_asked_for() -> None:
    together = places(actor={"devices": ["cuda:0"]}, rollout={"type": "vllm", "devices": ["cuda:0"]})
    assert not rollout_is_apart(together)
    apart = places(actor={"devices": ["cuda:0"]}, rollout={"devices": ["cuda:0"], "own_process": True})
    assert rollout_is_apart(apart)


@pytest.mark.parametrize(
    ("device_map", "message"),
    [
        ({"acter": {"devices": ["cpu:0"]}}, "trainer.device_map.acter: there is no such role; did you mean actor?"),
        ({"actor": {"device": ["cpu:0"]}}, "actor.device: there is no such key; did you mean devices?"),
        ({"actor": ["cuda:0"]}, r"actor=\['cuda:0'\]: expected a mapping"),
        ({"actor": {"type": "vllm", "gpus": 1}}, "actor.type=vllm: expected one of fsdp, dp, cpu for the role actor"),
        ({"rollout": {"type": "fsdp", "gpus": 1}}, "rollout.type=fsdp: expected one of vllm, hf, cpu"),
        ({"actor": {"type": "fsdp"}}, "trainer.device_map.actor: say where it runs"),
        ({"actor": {"gpus": 0}}, "actor.gpus=0: expected the number of GPUs"),
        ({"actor": {"gpus": 1, "devices": ["cuda:0"]}}, "devices and gpus are both set"),
        ({"actor": {"devices": ["gpu0"]}}, "'gpu0' is no device; expected cuda:<number> or cpu:<number>"),
        ({"actor": {"devices": ["cuda:0", "cuda:0"]}}, "names a device twice"),
        ({"actor": {"devices": ["cuda:0", "cpu:0"]}}, "on GPUs or on the CPU, not on both"),
        ({"ref": {"type": "cpu", "devices": ["cuda:0"]}}, r"type=cpu, but devices=\['cuda:0'\]"),
        ({"ref": {"type": "cpu", "gpus": 1}}, "type=cpu, but gpus=1"),
        ({"actor": {"gpus": 1, "node": [0, 0]}}, r"node=\[0, 0\] names a node twice"),
        ({"actor": {"gpus": 1, "node": -1}}, "node=-1: expected a number, .* numbers begin at 0"),
        ({"actor": {"gpus": 1, "node": [True]}}, r"node=\[True\]: expected a number"),
        ({"actor": {"gpus": 3_000_000_000}}, "actor.gpus=3000000000: expected the number of GPUs of a node, 1 to 1024"),
        ({"actor": {"devices": ["cpu:0", "cpu:00"]}}, "'cpu:00' is no device"),
        ({"actor": {"gpus": 1, "node": 1.5}}, "node=1.5: expected a number, a host, or a list"),
        ({"actor": {"gpus": 1, "strategy": "NEAR"}}, "strategy=NEAR: expected one of STRICT_PACK, PACK"),
        ({"actor": {"gpus": 1, "own_process": "yes"}}, "own_process='yes': expected true or false"),
        ({"rm": {"type": "cpu"}, "reward_model": {"type": "cpu"}}, "the role rm is placed twice"),
        (
            {"actor": {"devices": ["cuda:0", "cuda:1"]}, "critic": {"devices": ["cuda:1"]}},
            r"actor is on cuda:0, cuda:1 \(STRICT_PACK\) and critic on cuda:1 .* must have the same devices",
        ),
        (
            {"actor": {"devices": ["cuda:0"], "node": 0}, "critic": {"devices": ["cuda:0"]}},
            "actor is on cuda:0 of node 0",
        ),
    ],
)
def test_wrong_maps(device_map: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        role_places(device_map, DEFAULT)


def test_the_same_name_on_two_nodes_is_two_devices() -> None:
    found = places(actor={"devices": ["cuda:0"], "node": 0}, critic={"devices": ["cuda:0"], "node": 1})
    assert found["actor"].place != found["critic"].place


def test_a_yaml_file_and_the_keys_that_its_types_mean(tmp_path: Path) -> None:
    file = tmp_path / "map.yaml"
    file.write_text("actor: {type: dp, devices: ['cuda:0', 'cuda:1']}\nrollout: {type: vllm, devices: ['cuda:2']}\n")
    config = load_config([f"trainer.device_map={file}"])
    assert config.actor_rollout_ref.rollout.name == "vllm"
    assert config.actor_rollout_ref.actor.fsdp_config.fsdp_size == 1
    with pytest.raises(ConfigError, match=r"device_map means .*rollout.name=vllm, but .*rollout.name=hf is set"):
        load_config([f"trainer.device_map={file}", "actor_rollout_ref.rollout.name=hf"])
    config.actor_rollout_ref.rollout.name = "hf"  # nobody saw this one, so validation must
    with pytest.raises(ConfigError, match="trainer.device_map means"):
        validate(config, needs_critic=True, needs_groups=False)


def test_files_that_are_no_maps(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="device_map=.*nowhere.yaml: cannot be read"):
        load_config([f"trainer.device_map={tmp_path / 'nowhere.yaml'}"])
    for text, message in {
        "- actor\n": "expected `role: ",
        "": "expected `role: ",
        "0: {gpus: 1}\n": "expected `role: ",
        "ref: {type: cpu}\nactor: {gpus: 1}\nref: {gpus: 1}\n": "map.yaml, line 3: the role ref is named twice",
        "ref: {type: cpu}\nactor: {type: cpu, type: fsdp, gpus: 1}\n": "line 2: the role actor has the key type twice",
        "rm:\n  gpus: 1\n  node: 0\n  gpus: 2\n": "map.yaml, line 4: the role rm has the key gpus twice",
    }.items():
        (tmp_path / "map.yaml").write_text(text)
        with pytest.raises(ConfigError, match=message):
            load_config([f"trainer.device_map={tmp_path / 'map.yaml'}"])


def problems(*overrides: str) -> str:
    needed = ["data.train_files=a", "actor_rollout_ref.model.path=m", "actor_rollout_ref.actor.ppo_mini_batch_size=4"]
    config: PPOConfig = load_config([*needed, "data.train_batch_size=4", *overrides])
    with pytest.raises(ConfigError) as caught:
        validate(config, needs_critic=True, needs_groups=False)
    return str(caught.value)


def test_sizes_are_those_of_each_role() -> None:
    text = problems(
        "trainer.device_map={actor: {gpus: 8}, rollout: {type: vllm, gpus: 3}, critic: {gpus: 3}}",
        "critic.fsdp.fsdp_size=2",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
    )
    assert (
        "tensor_model_parallel_size=2 does not divide the number of processes: trainer.device_map gives rollout 3"
        in text
    )
    assert "critic.fsdp.fsdp_size=2 does not divide the number of processes: trainer.device_map gives critic 3" in text
    assert "trainer.device_map gives actor 8 devices = 8 processes, but a mini-batch has only" in text


def test_roles_that_the_run_lacks_are_told() -> None:
    config = load_config(["trainer.device_map={ref: {type: cpu}, rm: {type: cpu}, actor: {gpus: 1}}"])

    def absent() -> list[str]:
        found = [note for note in notes(config) if "device_map places the role" in note]
        return [note.removeprefix("trainer.device_map places the role ").partition(",")[0] for note in found]

    assert absent() == ["ref", "rm"]
    config.algorithm.use_kl_in_reward = True
    assert absent() == ["rm"]


def test_a_map_needs_ray() -> None:
    text = problems("trainer.worker_group=local", "trainer.device_map={ref: {type: cpu}}")
    assert (
        "trainer.worker_group=local runs everything in one process; trainer.device_map needs worker_group=ray" in text
    )


def test_a_run_on_the_cpu_has_no_gpus() -> None:
    text = problems("trainer.device=cpu", "trainer.device_map={critic: {gpus: 1}}")
    assert "trainer.device=cpu, but trainer.device_map puts critic on GPUs" in text
