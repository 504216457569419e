"""From a YAML file and `key=value` overrides to a `PPOConfig`, and back. The only place that knows omegaconf."""

import difflib
import logging
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from verl.config.aliases import KEY_ALIASES, newer_name, usual_value
from verl.config.device_map import implied_keys, read_device_map
from verl.config.errors import ConfigError
from verl.config.ppo import PPOConfig
from verl.config.presets import PRESETS, preset_problems
from verl.config.tree import Leaf, leaf_at, leaves, sections
from verl.config.unsupported import UNSUPPORTED, find_unsupported

logger = logging.getLogger(__name__)

Root = TypeVar("Root")

DEVICE_MAP = "trainer.device_map"


def load_config(
    overrides: Sequence[str] = (), config_file: str | None = None, settings: Mapping[str, Any] | None = None
) -> PPOConfig:
    """`load` of a PPO run."""
    return load(PPOConfig, overrides, config_file, settings)


def load(
    root: type[Root],
    overrides: Sequence[str] = (),
    config_file: str | None = None,
    settings: Mapping[str, Any] | None = None,
    defaults: Sequence[str] = (),
) -> Root:
    """An instance of the dataclass `root`: its defaults, replaced by the file's values, replaced by `overrides`.

    Args:
        root: the root of a run's config, such as `PPOConfig`.
        overrides: `key=value`, as in launch scripts for Hydra: `+key=` and `++key=` mean the same, values may be
            quoted, `null`, `[a, b]` or `{a: 1}`, and go to the end of the string. The last of several wins.
        config_file: YAML with the same keys, nested or dotted; `${other.key}` is replaced by that key's value.
        settings: values by key, nested or dotted, as a Python program has them; they win over the file.
        defaults: `key=value`, over which everything else wins.

    Raises:
        ConfigError: lists every unknown key (with the nearest known one), unsupported setting and wrong type, and
            where it was written; or says what is wrong with the file.
    """
    building = _Building(root)
    for override in defaults:
        building.apply_override(override, _DEFAULTS)
    if config_file is not None:
        for setting in _file_settings(config_file):
            building.apply(setting)
    for name, value in (settings or {}).items():
        building.apply(_Setting(name, value, _PROGRAM))
    for override in overrides:
        building.apply_override(override)
    config = building.finish()
    assert isinstance(config, root)
    return config


def to_dict(config: Any) -> dict[str, Any]:
    """The config as nested plain dicts."""
    return asdict(config)


def to_yaml(config: Any) -> str:
    """The config as YAML that `load(config_file=...)` reads back."""
    return OmegaConf.to_yaml(OmegaConf.create(to_dict(config)))


@dataclass(frozen=True)
class _Origin:
    """Where settings were written; `nodes` has the YAML of each dotted key and its value, if it was a file."""

    name: str
    nodes: Mapping[str, tuple[yaml.Node, yaml.Node]] = field(default_factory=dict)

    def of(self, written: str) -> str:
        if written not in self.nodes:
            return self.name
        return f"{self.name}, line {self.nodes[written][0].start_mark.line + 1}"

    def text(self, written: str) -> str | None:
        """The scalar as it stands in the file: YAML reads 0.5_2 as the number 0.52, and yes as true."""
        _, value = self.nodes.get(written, (None, None))
        return value.value if isinstance(value, yaml.ScalarNode) else None


_COMMAND_LINE = _Origin("command line")
_DEFAULTS = _Origin("defaults")
_PROGRAM = _Origin("settings")


@dataclass(frozen=True)
class _Setting:
    """The key `written` (as the user spelt it) shall be `value`."""

    written: str
    value: Any
    origin: _Origin

    @property
    def place(self) -> str:
        return f"{self.written} ({self.origin.of(self.written)})"

    def __str__(self) -> str:
        return f"{self.written}={'null' if self.value is None else self.value} ({self.origin.of(self.written)})"


class _Building:
    """A config in the making, with what was wrong and what is worth a line in the log."""

    def __init__(self, root: type) -> None:
        self.root = root
        self.tree: DictConfig = OmegaConf.structured(root)
        self.problems: list[str] = []
        self.refused: dict[str, list[str]] = defaultdict(list)
        self.ignored: dict[str, list[str]] = defaultdict(list)
        self.chosen: dict[str, Any] = {}

    def apply_override(self, override: str, origin: _Origin = _COMMAND_LINE) -> None:
        written, equals, text = override.partition("=")
        written = written.strip().removeprefix("++").removeprefix("+")
        if written.startswith("~"):
            self.problems.append(f"{override!r}: keys cannot be removed; set it to null, or leave it out")
        elif not equals or not written:
            self.problems.append(f"{override!r} is no override: write key=value")
        else:
            name = newer_name(written)
            leaf = leaf_at(name, self.root)
            value = _parse(text, leaf) if leaf is not None and leaf.path == name else _yaml_value(text)
            self.apply(_Setting(written, value, origin))

    def apply(self, setting: _Setting) -> None:
        name, value = newer_name(setting.written), setting.value
        leaf = leaf_at(name, self.root)
        if leaf is not None:
            if name != setting.written:
                logger.warning("%s is an older name of %s", setting.written, name)
            self._assign(name, setting, leaf)
        elif isinstance(value, dict) and (value or name in sections(self.root)):
            for below, item in value.items():
                self.apply(replace(setting, written=f"{setting.written}.{below}", value=item))
        elif row := find_unsupported(name):
            (self.ignored if row.accepts(value) else self.refused)[row.reason].append(str(setting))
        elif name in sections(self.root):
            self.problems.append(f"{setting}: {name} is a section; set one of the keys below it")
        else:
            self.problems.append(f"unknown key {setting.place}{_suggestion(name, self.root)}")

    def _assign(self, path: str, setting: _Setting, leaf: Leaf) -> None:
        inside = path != leaf.path
        value = setting.value
        if leaf.kind is str and isinstance(value, int | float):
            written = setting.origin.text(setting.written)
            value = value if written is None else written
        value = value if inside else usual_value(leaf.kind, value)
        if path == DEVICE_MAP and isinstance(value, str):
            try:
                value = read_device_map(value)
            except ConfigError as error:
                self.problems += error.problems
                return
        if leaf.is_list and isinstance(value, str | int | float) and "${" not in str(value):
            value = [value]
        try:
            OmegaConf.update(self.tree, path, value, merge=True, force_add=inside)
            self.chosen[path] = value
        except OmegaConfBaseException:
            self.problems.append(f"{setting}: expected {leaf.type_name}")

    def _apply_preset(self) -> None:
        """The keys that `algorithm.name` stands for, but for those that the user set."""
        name = self.chosen.get("algorithm.name")
        if name is None or self.root is not PPOConfig:
            return
        self.problems += preset_problems(name, self.chosen)
        for path, value in PRESETS.get(name, {}).items():
            if path not in self.chosen:
                OmegaConf.update(self.tree, path, value)

    def _apply_device_map(self) -> None:
        """The keys that the types in `trainer.device_map` stand for."""
        if self.root is not PPOConfig:
            return
        device_map: Any = OmegaConf.to_container(self.tree.trainer.device_map, resolve=False)
        for path, value in implied_keys(device_map).items():
            chosen = self.chosen.get(path, value)
            if chosen not in (value, "auto"):
                self.problems.append(f"{DEVICE_MAP} means {path}={value}, but {path}={chosen} is set: leave one out")
            OmegaConf.update(self.tree, path, value)

    def finish(self) -> Any:
        self._apply_preset()
        self._apply_device_map()
        self.problems += [f"{', '.join(settings)}: not supported: {why}" for why, settings in self.refused.items()]
        if self.problems:
            raise ConfigError(self.problems)
        for why, settings in self.ignored.items():
            logger.warning("no effect: %s: %s", ", ".join(settings), why)
        try:
            config = OmegaConf.to_object(self.tree)
        except OmegaConfBaseException as error:
            # An interpolation is looked up only now, so this is where a wrong one shows.
            raise ConfigError([f"{error.full_key}: {error.msg}"]) from error
        return config


# ---- the command line ----


def _parse(text: str, leaf: Leaf) -> Any:
    """The value that `text` means for a key of this type. What is a string is taken as it stands, quotes aside.

    YAML alone would read the string 2024_01 as a number and the path @file not at all.
    """
    text = text.strip()
    if text == "null" or (leaf.is_optional and text in ("None", "~")):
        return None
    if leaf.is_open:
        return _yaml_value(text)
    if text.startswith("[") and (leaf.kind is Any or leaf.is_list):
        return _strings(text)
    return _strings(text) if text[:1] in ("'", '"') and text[-1:] == text[:1] else text


def _strings(text: str) -> Any:
    """YAML in which every scalar is a string; `text` itself when it is no YAML."""
    try:
        return yaml.load(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError:
        return text


_UNSPACED = re.compile(r"\[[^][{}]*\]|([{,]\s*[\w.\-]+):(?=\S)")
"""A list of scalars, which may hold colons ([cpu:0, cpu:1]), or a key and its colon without the space of YAML."""


def _spaced(match: re.Match[str]) -> str:
    return match[0] if match[1] is None else f"{match[1]}: "


def _yaml_value(text: str) -> Any:
    """YAML with its types; `{a:1}` is a mapping, as Hydra has it, and what is no YAML is a string."""
    spaced = _UNSPACED.sub(_spaced, text) if text.lstrip().startswith("{") else text
    try:
        return OmegaConf.to_container(OmegaConf.from_dotlist([f"value={spaced}"]), resolve=False)["value"]  # type: ignore[index, call-overload]
    except yaml.YAMLError:
        return text


# ---- the file ----


def _file_settings(config_file: str) -> list[_Setting]:
    """The file's settings, section by section."""
    try:
        text = Path(config_file).expanduser().read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = OmegaConf.to_container(OmegaConf.create(text), resolve=False) if node is not None else {}
    except OSError as error:
        raise ConfigError([f"config file {config_file}: {error.strerror or error}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"config file {config_file}: not UTF-8 text at byte {error.start}"]) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError([f"config file {config_file}{where}: {error.problem}"]) from error
    if not isinstance(values, dict) or isinstance(node, yaml.ScalarNode):
        raise ConfigError([f"config file {config_file}: expected `key: value` at the top level"])
    origin = _Origin(config_file, dict(_nodes(node, "")))
    return [_Setting(str(name), value, origin) for name, value in values.items()]


def _nodes(node: yaml.Node | None, prefix: str) -> Iterator[tuple[str, tuple[yaml.Node, yaml.Node]]]:
    """(dotted key, its YAML and its value's) of every key below a YAML node."""
    if isinstance(node, yaml.MappingNode):
        for name, item in node.value:
            path = f"{prefix}{name.value}"
            yield path, (name, item)
            yield from _nodes(item, f"{path}.")


def _suggestion(path: str, root: type) -> str:
    """The known keys that are nearest to an unknown one, as the end of a sentence."""
    known = list(leaves(root))
    if root is PPOConfig:
        known += [*KEY_ALIASES, *(row.pattern for row in UNSUPPORTED if "*" not in row.pattern)]
    last = path.rpartition(".")[2]

    def likeness(candidate: str) -> tuple[float, float]:
        whole = difflib.SequenceMatcher(None, path, candidate).ratio()
        tail = difflib.SequenceMatcher(None, last, candidate.rpartition(".")[2]).ratio()
        return max(whole, tail), whole

    best = max(known, key=likeness)
    return f": did you mean {best}?" if likeness(best)[0] >= 0.7 else "; docs/config.md lists all keys"
