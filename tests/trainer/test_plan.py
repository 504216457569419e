from collections.abc import Callable
from pathlib import Path

import pytest
from torch import nn

from verl.config import PPOConfig
from verl.config.loader import load_config
from verl.models.size import parameter_count
from verl.trainer.checks import checked
from verl.trainer.plan import PROCESS_BYTES, RolePlan, check_memory, memory_per_process, plan_run, table
from verl.trainer.roles import Role, default_roles
from verl.utils import memory

MODEL = nn.Linear(10, 10, bias=False)  # 100 numbers, 400 bytes in fp32
MODULES = {str(role): MODEL for role in (Role.ActorRollout, Role.Actor, Role.Rollout, Role.Critic, Role.RefPolicy)}


def config_of(overrides: list[str]) -> PPOConfig:
    return checked(load_config(overrides))


def test_weights_gradients_and_moments_in_one_process(tiny_run: Callable[..., list[str]]) -> None:
    config = config_of(tiny_run())
    plans = {plan.role: plan for plan in plan_run(config, default_roles(config), MODULES)}
    # The actor has 400 bytes to train and 400 to generate with; gradients and two moments are 3 x 400.
    assert (plans["actor_rollout"].weights, plans["actor_rollout"].training) == (800, 1200)
    assert (plans["critic"].weights, plans["critic"].training) == (400, 1200)
    assert (plans["ref"].weights, plans["ref"].training) == (400, 0)


def test_sharding_divides_what_trains_and_not_what_generates(tiny_run: Callable[..., list[str]]) -> None:
    from verl.trainer.launch import pools_for

    device_map = "{actor: {devices: [cpu:0, cpu:1]}, rollout: {devices: [cpu:2, cpu:3]}}"
    config = config_of(tiny_run("trainer.worker_group=ray", f"trainer.device_map={device_map}"))
    roles = default_roles(config)
    pools = pools_for(config, map(str, roles))
    pools.create_resource_pool()
    plans = {plan.role: plan for plan in plan_run(config, roles, MODULES, pools)}
    assert (plans["actor"].weights, plans["actor"].training) == (200, 600)
    assert (plans["rollout"].weights, plans["rollout"].training) == (400, 0)
    text = table(list(plans.values())).splitlines()
    assert text[0].split()[:5] == ["role", "class", "processes", "devices", "node"]
    assert text[1].split()[:6] == ["actor", "ActorWorker", "2", "cpu:0,", "cpu:1", "any"]
    assert text[2].split()[:6] == ["rollout", "RolloutWorker", "2", "cpu:2,", "cpu:3", "any"]


def test_what_does_not_fit_is_refused_with_the_sum() -> None:
    plans = [
        RolePlan("actor", "A", 1, "cuda:0", "0", "cuda", "pool", weights=2**30, training=3 * 2**30),
        RolePlan("critic", "C", 1, "cuda:0", "0", "cuda", "pool", weights=2**30),
        RolePlan("rm", "R", 1, "cuda:1", "0", "cuda", "other", weights=2**30),
    ]
    check_memory(plans, {"cuda": 5 * 2**30})
    check_memory(plans, {"cpu": 1})
    with pytest.raises(ValueError, match=r"cuda:0 need at least 5.0 GiB for each process \(actor 4.0 GiB, critic 1.0"):
        check_memory(plans, {"cuda": 5 * 2**30 - 1})


def test_processes_on_cpus_share_what_the_container_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = [
        RolePlan("actor", "A", 2, "cpu:0, cpu:1", "0", "cpu", "pool"),
        RolePlan("critic", "C", 2, "cpu:0, cpu:1", "0", "cpu", "pool"),
        RolePlan("ref", "R", 1, "ref/cpu", "0", "cpu", "other"),
    ]
    monkeypatch.setattr(memory, "CONTROL_GROUP", tmp_path)
    (tmp_path / "memory.max").write_text(f"{3 * 2**20}\n")
    assert memory_per_process(plans)["cpu"] == 2**20


def test_processes_take_memory_before_they_have_a_model() -> None:
    plans = [RolePlan("actor", "A", 200, "200 x cpu", "0", "cpu", "pool", weights=100 * 2**20)]
    check_memory(plans, {"cpu": PROCESS_BYTES + 100 * 2**20})
    with pytest.raises(ValueError, match=r"200 x cpu need at least .*\(actor 100.0 MiB, the process itself 0.4 GiB\)"):
        check_memory(plans, {"cpu": 24 * 2**30 // 200})


def test_the_size_of_a_model_in_a_folder_is_that_of_its_weights(
    tiny_model_dir: Path, tiny_model_factory: Callable[..., nn.Module]
) -> None:
    assert parameter_count(str(tiny_model_dir)) == parameter_count(tiny_model_factory())
    assert parameter_count("owner/name") is None
    assert parameter_count(None) is None
