"""What a Ray cluster has, what of it is free, and who holds the rest."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import ray

# The only ways to ask for these without Ray's dashboard.
from ray._private import state
from ray._private.state import available_resources_per_node
from ray.util.placement_group import placement_group_table


def alive_nodes() -> list[dict[str, Any]]:
    """Ray's records of the nodes that are up: the driver's own first, the others by address."""
    here = ray.get_runtime_context().get_node_id()
    nodes = [node for node in ray.nodes() if node["Alive"]]
    return sorted(nodes, key=lambda node: (node["NodeID"] != here, node["NodeManagerAddress"], node["NodeID"]))


def node_id(node: int | str) -> str:
    """The id of a node, given by its number (as `alive_nodes` counts), host, address or id. ValueError for none.

    A string of digits is a number unless a node is called so.
    """
    nodes = alive_nodes()
    found = [
        each for each in nodes if node in (each["NodeID"], each["NodeManagerHostname"], each["NodeManagerAddress"])
    ]
    if len(found) == 1:
        return str(found[0]["NodeID"])
    number = node if isinstance(node, int) else int(node) if node.isdecimal() else -1
    if not found and 0 <= number < len(nodes):
        return str(nodes[number]["NodeID"])
    listed = "; ".join(f"{number}: {node_name(each)}" for number, each in enumerate(nodes))
    what = f"{len(found)} nodes are called so: use the number" if found else "there is no such node"
    raise ValueError(f"node {node!r}: {what}; the cluster has {listed}")


def gpus_of(node: int | str | None) -> tuple[int, str]:
    """GPUs of a node, or of the node that has most of them, and that node's name."""
    nodes = alive_nodes()
    if node is not None:
        wanted = node_id(node)
        nodes = [each for each in nodes if each["NodeID"] == wanted]
    most = max(nodes, key=lambda each: _amount(each["Resources"], "GPU"))
    return int(_amount(most["Resources"], "GPU")), f"node {node_name(most)}"


def room_of(node: Mapping[str, Any], resources: Mapping[str, float]) -> int:
    """How many times `resources` fit on a node of which nothing is in use."""
    return int(min(_amount(node["Resources"], name) // amount for name, amount in resources.items()))


def node_name(node: Mapping[str, Any]) -> str:
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"


def free_text(resources: Mapping[str, float]) -> str:
    """How much of each of `resources` is free on each node."""
    free = available_resources_per_node()
    return "; ".join(
        f"node {number}, {node_name(node)}: "
        + " and ".join(
            f"{_amount(free[node['NodeID']], name):g} of {_amount(node['Resources'], name):g} {name}"
            for name in resources
        )
        for number, node in enumerate(alive_nodes())
        if node["NodeID"] in free
    )


def holders_text() -> str:
    """Who holds resources: placement groups by name, and actors by class and process."""
    names = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes()}
    held = []
    for group in placement_group_table().values():
        if group["state"] == "CREATED":
            total: Counter[str] = Counter()
            for bundle in group["bundles"].values():
                total.update(bundle)
            amounts = " and ".join(f"{amount:g} {name}" for name, amount in total.items())
            hosts = ", ".join(sorted({names.get(node, "?") for node in group["bundles_to_node_id"].values()}))
            held.append(f"placement group {group['name'] or group['placement_group_id']} ({amounts} on {hosts})")
    for actor in state.actors().values():
        if actor["State"] == "ALIVE":
            host = names.get(actor["Address"]["NodeID"], "?")
            held.append(
                f"actor {actor['Name'] or actor['ActorClassName']} (job {actor['JobID']}, pid {actor['Pid']} on {host})"
            )
    return "; ".join(held) or "nobody that Ray knows of"


def _amount(resources: Mapping[str, float], name: str) -> float:
    return resources.get(name, 0.0)  # Ray leaves out what there is none of
