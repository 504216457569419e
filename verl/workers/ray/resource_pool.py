"""Places for worker processes: CPUs and GPUs reserved on the nodes of a Ray cluster."""

import logging
import time
import uuid
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group

from verl.config.device_map import STRATEGIES
from verl.workers.ray.cluster import alive_nodes, free_text, holders_text, node_id, room_of

logger = logging.getLogger("verl.workers")

NODE_ID = "ray.io/node-id"
"""The label that Ray gives every node."""


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
        nodes: which node each entry of `process_on_nodes` is on: its number in the cluster (0 is the driver's), host,
            address or id; None leaves it to Ray.

    Raises ValueError for sizes below 1, unknown strategies, and (when the resources are reserved) unknown nodes and a
    strategy that the cluster's nodes could not satisfy if they were all free.
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
        nodes: Sequence[int | str | None] | None = None,
    ) -> None:
        self.name = name_prefix or "pool"
        self.nodes = list(nodes or [None] * len(process_on_nodes))
        if len(self.nodes) != len(process_on_nodes):
            raise ValueError(
                f"resource pool {self.name!r}: nodes {self.nodes} must name one node for each entry of "
                f"process_on_nodes {list(process_on_nodes)}"
            )
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
        self._check_strategy()
        deadline = time.monotonic() + self.timeout_s
        labels = [{} if node is None else {NODE_ID: node_id(node)} for node in self.nodes]
        groups = [
            placement_group(
                [self._bundle()] * count,
                strategy=self.placement_strategy,
                # Ray wants names to be unique, and whoever waits for resources reads them.
                name=f"{self.name}:{node}" if self.detached else f"verl:{self.name}:{node}:{uuid.uuid4().hex[:8]}",
                lifetime="detached" if self.detached else None,
                bundle_label_selector=[label] * count,
            )
            for node, (count, label) in enumerate(zip(self.process_on_nodes, labels, strict=True))
        ]
        short = self._shortage()
        if short:
            logger.warning("%s Waiting up to %g s for the cluster to grow.", short, self.timeout_s)
        for group in groups:
            # Ray counts in whole seconds here, and 0 would be no wait at all.
            if not group.wait(max(1, round(deadline - time.monotonic()))):
                asked, held = self._asked(), holders_text()
                for made in groups:
                    remove_placement_group(made)
                raise RuntimeError(
                    f"resource pool {self.name!r} did not get its resources within {self.timeout_s:g} s.\n"
                    f"{asked}\n  held by: {held}\n"
                    f"Ask for fewer processes, end what holds the rest, or give Ray more (ray.init(num_cpus=...))."
                )
        return groups

    def _check_strategy(self) -> None:
        """ValueError when an entry would not fit though nothing else ran. PACK and SPREAD may wait for more nodes."""
        nodes = {each["NodeID"]: room_of(each, self._bundle()) for each in alive_nodes()}
        for count, node in zip(self.process_on_nodes, self.nodes, strict=True):
            rooms = list(nodes.values()) if node is None else [nodes[node_id(node)]]
            where = "one node" if node is None else f"node {node!r}"
            if self.placement_strategy == "STRICT_SPREAD":
                possible = sum(room > 0 for room in rooms)
                lack = f"{count} nodes with room for a process each, and the cluster has {possible}"
            elif self.placement_strategy == "STRICT_PACK" or node is not None:
                possible = max(rooms)
                lack = f"room for {count} processes on {where}, and there is room for {possible} at most"
            else:
                continue
            if count > possible:
                raise ValueError(
                    f"resource pool {self.name!r} can never be placed: {self.placement_strategy} needs {lack}.\n"
                    f"{self._asked()}\n"
                    f"Ask for fewer processes, choose another strategy, or start Ray on larger or more nodes first."
                )

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
        """Lines that say what is asked, in which way, and what is free."""
        per_node = [
            " and ".join(f"{amount * count:g} {name}" for name, amount in self._bundle().items())
            for count in self.process_on_nodes
        ]
        names = [f"node {number}" if node is None else f"node {node!r}" for number, node in enumerate(self.nodes)]
        asked = "; ".join(f"{name}: {amounts}" for name, amounts in zip(names, per_node, strict=True))
        return (
            f"  asked: {asked}\n  strategy: {self.placement_strategy} "
            f"(trainer.placement_strategy, or strategy in trainer.device_map)\n  free: {free_text(self._bundle())}"
        )


@dataclass
class ResourcePoolManager:
    """Resource pools by name, and which role uses which.

    Attributes:
        resource_pool_spec: by pool name, `process_on_nodes` or a pool.
        mapping: pool name by role.
        use_gpu, max_colocate_count, timeout_s: see `RayResourcePool`; for pools that are not given themselves.
        own_process: roles that have processes of their own, beside those of the other roles of their pool.

    Raises ValueError, with the known names, when a role is mapped to a pool that the spec lacks.
    """

    resource_pool_spec: Mapping[str, Sequence[int] | RayResourcePool]
    mapping: Mapping[Hashable, str]
    use_gpu: bool = True
    max_colocate_count: int = 1
    timeout_s: float = 60.0
    own_process: Collection[str] = ()
    resource_pool_dict: dict[str, RayResourcePool] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for role, name in self.mapping.items():
            if name not in self.resource_pool_spec:
                raise ValueError(
                    f"role {role!r} is mapped to the resource pool {name!r}, which does not exist; known pools: "
                    f"{sorted(self.resource_pool_spec)}"
                )

    def create_resource_pool(self) -> None:
        """Make the pools, unless they are made. Their resources are reserved when a group first needs them."""
        self.resource_pool_dict = self.resource_pool_dict or self._pools()

    def _pools(self) -> dict[str, RayResourcePool]:
        return {
            name: given
            if isinstance(given, RayResourcePool)
            else RayResourcePool(
                given, self.use_gpu, self.max_colocate_count, name_prefix=name, timeout_s=self.timeout_s
            )
            for name, given in self.resource_pool_spec.items()
        }

    def reserve(self) -> None:
        """Reserve what all pools need, before any process starts. RuntimeError as from `RayResourcePool.slots`."""
        for pool in self.resource_pool_dict.values():
            pool.slots()

    def cpus_on_one_node(self) -> int | None:
        """CPUs that all pools need together, if each asks for one node only."""
        pools = self._pools().values()
        if any(len(pool.process_on_nodes) > 1 for pool in pools):
            return None
        return sum(pool.world_size * pool.max_colocate_count for pool in pools)

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
