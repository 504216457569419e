"""Run by test_placement.py: a run on a cluster of two nodes, both on this machine."""

import os
import sys
from collections import defaultdict

os.environ["RAY_memory_monitor_refresh_ms"] = "0"  # noqa: SIM112

from ray.cluster_utils import Cluster  # type: ignore[import-untyped, unused-ignore]

from verl.config.loader import load_config
from verl.models.loading import load_model_tokenizer
from verl.trainer import RayPPOTrainer
from verl.trainer.checks import checked
from verl.trainer.launch import running
from verl.trainer.roles import default_roles


def main(overrides: list[str]) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=2)
    try:
        config = checked(load_config(overrides))
        roles = default_roles(config)
        tokenizer = load_model_tokenizer(config.actor_rollout_ref.model)
        trainer = RayPPOTrainer(config, tokenizer, roles)
        with running(trainer, cluster.address):
            nodes = defaultdict(set)
            for role in ("actor_rollout", "ref"):
                for slot in trainer.resource_pool_manager.get_resource_pool(role).slots():
                    nodes[role].add(slot.node_id)
            print(f"actor_rollout on {len(nodes['actor_rollout'])} nodes, ref on {len(nodes['ref'])}")
            assert nodes["ref"] < nodes["actor_rollout"]
            trainer.fit()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
