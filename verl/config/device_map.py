"""Which devices each role of a PPO run gets: `trainer.device_map`.

    actor:        {type: fsdp, devices: ["cuda:0", "cuda:1"]}
    rollout:      {type: vllm, devices: ["cuda:2", "cuda:3"]}     # apart from the actor: weights travel between them
    critic:       {type: fsdp, devices: ["cuda:0", "cuda:1"]}     # the actor's devices: they share its processes
    ref:          {type: cpu}                                     # one process of its own
    reward_model: {type: cpu, devices: ["cpu:0", "cpu:1"]}        # two processes

A role that is not named lives with the actor; an actor that is not named, on `trainer.nnodes` x
`trainer.n_gpus_per_node`. Device names tell apart and count: roles with equal lists share devices, and Ray chooses
which physical GPU of the node is "cuda:0".
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import yaml

from verl.config.errors import ConfigError
from verl.config.trainer import BaseTrainerConfig, PlacementStrategy, TrainerConfig

ACTOR, ROLLOUT = "actor", "rollout"
ROLE_NAMES = {
    "actor": ACTOR,
    "rollout": ROLLOUT,
    "critic": "critic",
    "ref": "ref",
    "reference": "ref",
    "rm": "rm",
    "reward": "rm",
    "reward_model": "rm",
}
"""How a map may call a role, and what it is called here."""

FSDP_SECTIONS = {
    ACTOR: "actor_rollout_ref.actor.fsdp_config",
    "critic": "critic.fsdp",
    "ref": "actor_rollout_ref.ref.fsdp_config",
    "rm": "reward.reward_model.fsdp",
}
STRATEGIES = get_args(PlacementStrategy)
KEYS = ("type", "devices", "gpus", "node", "strategy", "own_process")

MAX_DEVICES = 1024
"""On one node; more is a slip of the keyboard."""

_DEVICE = re.compile(r"(cuda|cpu):(0|[1-9][0-9]{0,3})")  # each device has one name


@dataclass(frozen=True)
class Place:
    """Where processes run: one on each of `devices`, on each of `nodes`.

    Attributes:
        kind: "cuda", "cpu", or "auto": CUDA when there is a device.
        devices: names; a place whose names are its own ("critic/gpu0") shares nothing with others.
        nodes: numbers of nodes of the cluster, hosts or addresses; None leaves the choice to Ray.
        strategy: Ray's placement strategy for the processes of one entry of `nodes`.
    """

    kind: str
    devices: tuple[str, ...]
    nodes: tuple[int | str | None, ...] = (None,)
    strategy: str = "STRICT_PACK"

    @property
    def world_size(self) -> int:
        return len(self.devices) * len(self.nodes)


@dataclass(frozen=True)
class RolePlace:
    """A role's place.

    Attributes:
        type: what the map says of the role; None where it says nothing.
        own_process: whether the role has processes of its own beside those of the roles that share its devices.
    """

    place: Place
    type: str | None = None
    own_process: bool = False


def read_device_map(file: str | Path) -> dict[str, Any]:
    """The map in a YAML file. ConfigError when there is none, or when it names a role, or a key of a role, twice."""
    try:
        text = Path(file).expanduser().read_text(encoding="utf-8")
        found, tree = yaml.safe_load(text), yaml.compose(text, Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError([f"trainer.device_map={file}: cannot be read: {error}"]) from error
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise ConfigError([f"trainer.device_map={file}: expected `role: {{type: ..., devices: [...]}}` lines"])
    twice = [f"trainer.device_map={file}, line {line}: the role {role} is named twice" for role, line in _again(tree)]
    for role, entry in tree.value:
        if isinstance(entry, yaml.MappingNode):
            twice += [
                f"trainer.device_map={file}, line {line}: the role {role.value} has the key {key} twice"
                for key, line in _again(entry)
            ]
    if twice:
        raise ConfigError(twice)
    return found


def _again(mapping: yaml.MappingNode) -> list[tuple[str, int]]:
    """Keys that a mapping has already had, with their lines. YAML drops the earlier value without a word."""
    keys = [key for key, _ in mapping.value]
    names = [key.value for key in keys]
    return [(key.value, key.start_mark.line + 1) for n, key in enumerate(keys) if key.value in names[:n]]


def role_places(device_map: Mapping[str, Any], default: Place) -> dict[str, RolePlace]:
    """The place of every role (actor, rollout, critic, ref, rm).

    Args:
        default: the actor's place when the map does not name it.

    Raises:
        ConfigError: lists everything that is wrong with the map.
    """
    problems: list[str] = []
    named: dict[str, RolePlace] = {}
    for name, entry in device_map.items():
        where = f"trainer.device_map.{name}"
        if name not in ROLE_NAMES:
            near = difflib.get_close_matches(str(name), ROLE_NAMES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"roles are {', '.join(ROLE_NAMES)}"
            problems.append(f"{where}: there is no such role; {hint}")
            continue
        role = ROLE_NAMES[name]
        if role in named:
            problems.append(f"{where}: the role {role} is placed twice")
            continue
        found = _problems_of(where, role, entry)
        problems += found
        if not found:
            named[role] = _role_place(role, entry)
    if not problems:
        problems += _overlaps(named)
    if problems:
        raise ConfigError(problems)
    actor = named.get(ACTOR, RolePlace(default))
    together = RolePlace(actor.place)
    return {role: named.get(role, together) for role in dict.fromkeys(ROLE_NAMES.values())} | {ACTOR: actor}


def places_of(trainer: TrainerConfig) -> dict[str, RolePlace]:
    """The place of every role of a run, by its device map and its own devices. ConfigError for a wrong map."""
    return role_places(trainer.device_map, default_place(trainer))


def default_place(trainer: BaseTrainerConfig) -> Place:
    """`trainer.nnodes` x `trainer.n_gpus_per_node` devices that no map can name."""
    devices = tuple(f"all/{number}" for number in range(trainer.n_gpus_per_node))
    return Place(trainer.device, devices, (None,) * trainer.nnodes, trainer.placement_strategy)


def implied_keys(device_map: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the config that the `type`s of a map set. Nothing for what is wrong with it: `role_places` tells."""
    keys: dict[str, Any] = {}
    for name, entry in device_map.items():
        role, kind = ROLE_NAMES.get(name), entry.get("type") if isinstance(entry, Mapping) else None
        if role == ROLLOUT and kind in ("vllm", "hf"):
            keys["actor_rollout_ref.rollout.name"] = kind
        if role in FSDP_SECTIONS and kind == "dp":
            keys[f"{FSDP_SECTIONS[role]}.fsdp_size"] = 1  # every process has the whole model
    return keys


def rollout_is_apart(places: Mapping[str, RolePlace]) -> bool:
    """Whether actor and rollout are in different processes, so that weights must travel between them."""
    actor, rollout = places[ACTOR], places[ROLLOUT]
    return rollout.place != actor.place or rollout.own_process or actor.own_process


def _problems_of(where: str, role: str, entry: Any) -> list[str]:
    if not isinstance(entry, Mapping):
        return [f"{where}={entry!r}: expected a mapping such as {{type: fsdp, devices: ['cuda:0']}}"]
    problems = []
    for key in entry:
        if key not in KEYS:
            near = difflib.get_close_matches(str(key), KEYS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"keys are {', '.join(KEYS)}"
            problems.append(f"{where}.{key}: there is no such key; {hint}")
    kind = entry.get("type")
    allowed = ("vllm", "hf", "cpu") if role == ROLLOUT else ("fsdp", "dp", "cpu")
    if kind is not None and kind not in allowed:
        problems.append(f"{where}.type={kind}: expected one of {', '.join(allowed)} for the role {role}")
    strategy = entry.get("strategy", STRATEGIES[0])
    if strategy not in STRATEGIES:
        problems.append(f"{where}.strategy={strategy}: expected one of {', '.join(STRATEGIES)}")
    if not isinstance(entry.get("own_process", False), bool):
        problems.append(f"{where}.own_process={entry['own_process']!r}: expected true or false")
    nodes = _as_list(entry.get("node"))
    if not nodes or not all(_names_node(node) for node in nodes):
        problems.append(
            f"{where}.node={entry['node']!r}: expected a number, a host, or a list of them; numbers begin at 0"
        )
    elif len(set(nodes)) < len(nodes):
        problems.append(f"{where}.node={entry['node']!r} names a node twice")
    return problems + _device_problems(where, entry)


def _device_problems(where: str, entry: Mapping[str, Any]) -> list[str]:
    devices, gpus, kind = entry.get("devices"), entry.get("gpus"), entry.get("type")
    if devices is not None and gpus is not None:
        return [f"{where}: devices and gpus are both set; leave one of them out"]
    if gpus is not None:
        if kind == "cpu":
            return [f"{where}: type=cpu, but gpus={gpus}"]
        if isinstance(gpus, bool) or not isinstance(gpus, int) or not 1 <= gpus <= MAX_DEVICES:
            return [f"{where}.gpus={gpus!r}: expected the number of GPUs of a node, 1 to {MAX_DEVICES}"]
        return []
    if devices is None:
        return [] if kind == "cpu" else [f"{where}: say where it runs: devices: ['cuda:0', ...], gpus: n or type: cpu"]
    if not isinstance(devices, list | tuple) or not devices:
        return [f"{where}.devices={devices!r}: expected a list such as ['cuda:0', 'cuda:1']"]
    wrong = [device for device in devices if not (isinstance(device, str) and _DEVICE.fullmatch(device))]
    if wrong:
        return [f"{where}.devices: {wrong[0]!r} is no device; expected cuda:<number> or cpu:<number>"]
    if len(set(devices)) < len(devices):
        return [f"{where}.devices={devices} names a device twice"]
    kinds = {device.partition(":")[0] for device in devices}
    if len(kinds) > 1:
        return [f"{where}.devices={devices}: one role runs on GPUs or on the CPU, not on both"]
    if kind == "cpu" and kinds != {"cpu"}:
        return [f"{where}: type=cpu, but devices={devices}"]
    return []


def _role_place(role: str, entry: Mapping[str, Any]) -> RolePlace:
    if entry.get("gpus") is not None:
        kind, devices = "cuda", tuple(f"{role}/gpu{number}" for number in range(entry["gpus"]))
    else:
        devices = tuple(entry.get("devices") or [f"{role}/cpu"])
        kind = devices[0].partition(":")[0] if entry.get("devices") else "cpu"
    place = Place(kind, devices, tuple(_as_list(entry.get("node"))), entry.get("strategy", STRATEGIES[0]))
    return RolePlace(place, entry.get("type"), entry.get("own_process", False))


def _overlaps(named: Mapping[str, RolePlace]) -> list[str]:
    """A sentence for each two roles that share some devices and not all, or share them and disagree on the rest."""
    problems = []
    roles = list(named.items())
    for number, (role, one) in enumerate(roles):
        for other, two in roles[number + 1 :]:
            shared = set(one.place.devices) & set(two.place.devices)
            if shared and one.place != two.place and _may_meet(one.place.nodes, two.place.nodes):
                problems.append(
                    f"trainer.device_map: {role} is on {_text(one.place)} and {other} on {_text(two.place)}: roles "
                    f"that share a device ({', '.join(sorted(shared))}) must have the same devices, node and strategy"
                )
    return problems


def _may_meet(one: tuple[int | str | None, ...], two: tuple[int | str | None, ...]) -> bool:
    return None in one or None in two or bool(set(one) & set(two))


def _text(place: Place) -> str:
    nodes = "" if place.nodes == (None,) else f" of node {', '.join(map(str, place.nodes))}"
    return f"{', '.join(place.devices)}{nodes} ({place.strategy})"


def _names_node(value: Any) -> bool:
    if isinstance(value, int):
        return value >= 0 and not isinstance(value, bool)
    return value is None or (isinstance(value, str) and bool(value))


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
