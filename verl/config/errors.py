"""The one exception of this package."""

from collections.abc import Sequence


class ConfigError(ValueError):
    """The configuration is wrong; nothing has been loaded or started.

    `problems` holds one sentence for each thing that is wrong, so that all of them can be mended at once.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        super().__init__("; ".join(self.problems))

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return self.problems[0]
        return "\n".join([f"{len(self.problems)} problems in the configuration:", *(f"  - {p}" for p in self.problems)])

    def __reduce__(self) -> tuple[type["ConfigError"], tuple[list[str]]]:
        return ConfigError, (self.problems,)
