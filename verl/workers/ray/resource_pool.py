"""Places for worker processes: CPUs and GPUs reserved on the nodes of a Ray cluster."""

import logging
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import ray

# The only way to ask for the free resources of each node without Ray's dashboard.
from ray._private.state import available_resources_per_node
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group

logger = logging.getLogger("verl.workers")

STRATEGIES = ("STRICT_PACK", "PACK", "SPREAD", "STRICT_SPREAD")


@dataclass(frozen=True)
class Slot:
    """The place of one process: a bundle of a placement group, and the node that it is on."""

    group: PlacementGroup
    bundle: int
    node_id: str
    local_rank: int
    local_world_size: int


class RayResourcePool:
    """Places for processes, reserved when they are first needed.

    Args:
        process_on_nodes: processes on each node, such as [8, 8] for two nodes of 8 GPUs.
        use_gpu: whether each process gets a GPU; each gets a CPU in any case.
        max_colocate_count: groups that may use the pool at the same time. With 2, each process has half a GPU, and the
            processes of both groups with the same rank share one device.
        name_prefix: name in messages, and of the reservations if they are detached.
        placement_strategy: Ray's strategy within one entry of `process_on_nodes`. STRICT_PACK keeps it on one node.
        detached: keep the reservations (and the actors on them) when this driver ends.
        timeout_s: how long to wait for the resources to become free.

    Raises ValueError for sizes below 1 and unknown strategies.
    """

    def __init__(
        self,
        process_on_nodes: Sequence[int],
        use_gpu: bool = True,
        max_colocate_count: int = 1,
        name_prefix: str | None = None,
        placement_strategy: str = "STRICT_PACK",
        detached: bool = False,
        timeout_s: float = 60.0,
    ) -> None:
        self.name = name_prefix or "pool"
        if not process_on_nodes or any(count < 1 for count in process_on_nodes):
            raise ValueError(
                f"resource pool {self.name!r}: process_on_nodes must list at least one process for each node, but it "
                f"is {list(process_on_nodes)}"
            )
        if max_colocate_count < 1:
            raise ValueError(f"resource pool {self.name!r}: max_colocate_count must be at least 1")
        if placement_strategy not in STRATEGIES:
            raise ValueError(
                f"resource pool {self.name!r}: unknown placement_strategy {placement_strategy!r}; known: {STRATEGIES}"
            )
        self.process_on_nodes = list(process_on_nodes)
        self.use_gpu = use_gpu
        self.max_colocate_count = max_colocate_count
        self.placement_strategy = placement_strategy
        self.detached = detached
        self.timeout_s = timeout_s
        self._groups: list[PlacementGroup] = []
        self._users = 0

    @property
    def world_size(self) -> int:
        return sum(self.process_on_nodes)

    def slots(self) -> list[Slot]:
        """The place of each rank: ranks of one node follow each other, nodes in the order of `process_on_nodes`.

        Raises RuntimeError after `timeout_s` seconds, with what was asked and what is free on each node.
        """
        if not self._groups:
            self._groups = self._reserve()
        places = []
        for group in self._groups:
            nodes = placement_group_table(group)["bundles_to_node_id"]
            places += [(group, bundle, nodes[bundle]) for bundle in sorted(nodes)]
        order = list(dict.fromkeys(node for _, _, node in places))
        places.sort(key=lambda place: order.index(place[2]))
        counts = {node: [place[2] for place in places].count(node) for node in order}
        seen = dict.fromkeys(order, -1)
        slots = []
        for group, bundle, node in places:
            seen[node] += 1
            slots.append(Slot(group, bundle, node, seen[node], counts[node]))
        return slots

    def claim(self) -> None:
        """Enter one more group. ValueError if the pool has no room for it: its actors could never start."""
        if self._users == self.max_colocate_count:
            raise ValueError(
                f"resource pool {self.name!r} already holds {self._users} group(s), as many as max_colocate_count="
                f"{self.max_colocate_count} allows: raise it, or put the roles into one group with "
                f"create_colocated_worker_cls"
            )
        self._users += 1

    def release(self) -> None:
        """A group has ended."""
        self._users -= 1

    def close(self) -> None:
        """Give the resources back. Actors that still run on them are killed by Ray."""
        if ray.is_initialized():
            for group in self._groups:
                remove_placement_group(group)
        self._groups = []

    def _bundle(self) -> dict[str, float]:
        return {"CPU": self.max_colocate_count, **({"GPU": 1} if self.use_gpu else {})}

    def _reserve(self) -> list[PlacementGroup]:
        deadline = time.monotonic() + self.timeout_s
        groups = [
            placement_group(
                [self._bundle()] * count,
                strategy=self.placement_strategy,
                name=f"{self.name}:{node}" if self.detached else "",  # Ray wants names to be unique
                lifetime="detached" if self.detached else None,
            )
            for node, count in enumerate(self.process_on_nodes)
        ]
        short = self._shortage()
        if short:
            logger.warning("%s Waiting up to %g s for the cluster to grow.", short, self.timeout_s)
        for group in groups:
            # Ray counts in whole seconds here, and 0 would be no wait at all.
            if not group.wait(max(1, round(deadline - time.monotonic()))):
                free = self._free()
                for made in groups:
                    remove_placement_group(made)
                raise RuntimeError(
                    f"resource pool {self.name!r} did not get its resources within {self.timeout_s:g} s.\n"
                    f"  asked: {self._asked()}\n  free: {free}\n"
                    f"Ask for fewer processes, end what holds the rest, or give Ray more (ray.init(num_cpus=...))."
                )
        return groups

    def _shortage(self) -> str:
        total = ray.cluster_resources()
        asked = {name: amount * self.world_size for name, amount in self._bundle().items()}
        lacks = [
            f"{asked[name]:g} {name} but the cluster has {total.get(name, 0):g}"
            for name in asked
            if asked[name] > total.get(name, 0)
        ]
        return f"resource pool {self.name!r} asks for {', '.join(lacks)}." if lacks else ""

    def _asked(self) -> str:
        per_node = [
            " and ".join(f"{amount * count:g} {name}" for name, amount in self._bundle().items())
            for count in self.process_on_nodes
        ]
        return "; ".join(f"node {node}: {amounts}" for node, amounts in enumerate(per_node))

    def _free(self) -> str:
        free = available_resources_per_node()
        return "; ".join(
            f"node {node['NodeManagerHostname']} ({node['NodeManagerAddress']}): "
            + " and ".join(
                f"{_amount(free[node['NodeID']], name):g} of {_amount(node['Resources'], name):g} {name}"
                for name in self._bundle()
            )
            for node in ray.nodes()
            if node["Alive"] and node["NodeID"] in free
        )


def _amount(resources: Mapping[str, float], name: str) -> float:
    return resources.get(name, 0.0)  # Ray leaves out what there is none of


@dataclass
class ResourcePoolManager:
    """Resource pools by name, and which role uses which.

    Attributes:
        resource_pool_spec: `process_on_nodes` by pool name.
        mapping: pool name by role.
        use_gpu, max_colocate_count, timeout_s: see `RayResourcePool`.

    Raises ValueError, with the known names, when a role is mapped to a pool that the spec lacks.
    """

    resource_pool_spec: Mapping[str, Sequence[int]]
    mapping: Mapping[Hashable, str]
    use_gpu: bool = True
    max_colocate_count: int = 1
    timeout_s: float = 60.0
    resource_pool_dict: dict[str, RayResourcePool] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for role, name in self.mapping.items():
            if name not in self.resource_pool_spec:
                raise ValueError(
                    f"role {role!r} is mapped to the resource pool {name!r}, which does not exist; known pools: "
                    f"{sorted(self.resource_pool_spec)}"
                )

    def create_resource_pool(self) -> None:
        """Make the pools. Their resources are reserved when a group first needs them."""
        self.resource_pool_dict = {
            name: RayResourcePool(
                processes, self.use_gpu, self.max_colocate_count, name_prefix=name, timeout_s=self.timeout_s
            )
            for name, processes in self.resource_pool_spec.items()
        }

    def close(self) -> None:
        """Give back what the pools hold."""
        for pool in self.resource_pool_dict.values():
            pool.close()
        self.resource_pool_dict = {}

    def get_resource_pool(self, role: Hashable) -> RayResourcePool:
        """The pool of a role. ValueError for a role without one, RuntimeError before `create_resource_pool`."""
        if role not in self.mapping:
            raise ValueError(f"role {role!r} has no resource pool; roles with one: {list(self.mapping)}")
        if not self.resource_pool_dict:
            raise RuntimeError("the resource pools were not made yet: call create_resource_pool() first")
        return self.resource_pool_dict[self.mapping[role]]
