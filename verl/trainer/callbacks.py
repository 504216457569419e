"""What a user may do between the steps of a run, without a subclass."""

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from verl.protocol import DataProto

if TYPE_CHECKING:
    from verl.trainer.ray_ppo import RayPPOTrainer


class Callback:
    """Override what you need; the methods here do nothing. `trainer.should_stop = True` ends the run after the step.

    Metrics are plain figures by name, as they are logged; what a callback adds to them is logged as well.
    """

    def on_train_begin(self, trainer: "RayPPOTrainer") -> None:
        """Models are loaded and a checkpoint, if any, is read; nothing was trained yet."""

    def on_step_end(self, trainer: "RayPPOTrainer", step: int, batch: DataProto, metrics: dict[str, float]) -> None:
        """A step's updates are done. `batch` has all its columns (see verl/protocol/schema.py)."""

    def on_validation_end(self, trainer: "RayPPOTrainer", step: int, metrics: dict[str, float]) -> None:
        """`metrics` are those of the validation alone."""

    def on_save(self, trainer: "RayPPOTrainer", step: int, folder: Path) -> None:
        """The checkpoint of `step` is complete in `folder`."""

    def on_train_end(self, trainer: "RayPPOTrainer", metrics: dict[str, float]) -> None:
        """All steps are done; `metrics` is what fit() returns."""


def checked_callbacks(callbacks: Iterable[Callback]) -> tuple[Callback, ...]:
    """The callbacks. TypeError for what is none, before a run has begun that it would end."""
    if isinstance(callbacks, Callback) or not isinstance(callbacks, Iterable):
        raise TypeError(f"callbacks={callbacks!r}: expected a list of verl.trainer.Callback objects")
    found = tuple(callbacks)
    for number, callback in enumerate(found):
        if not isinstance(callback, Callback):
            hint = "make one of the class: Class()" if isinstance(callback, type) else "subclass verl.trainer.Callback"
            raise TypeError(f"callbacks[{number}] is {callback!r}, which is no Callback object: {hint}")
        _check_methods(f"callbacks[{number}]", callback)
    return found


def _check_methods(name: str, callback: Callback) -> None:
    """TypeError for a method that cannot be called as the loop will, perhaps hours later, or that it never calls."""
    kind = type(callback).__name__
    hooks = {name: method for name, method in vars(Callback).items() if name.startswith("on_")}
    for hook in (hook for hook in dir(callback) if hook.startswith("on_")):
        if hook not in hooks:
            raise TypeError(f"{name}: {kind}.{hook} is never called: the methods are {', '.join(hooks)}")
        if inspect.iscoroutinefunction(getattr(callback, hook)):
            raise TypeError(f"{name}: {kind}.{hook} is a coroutine, which nothing would wait for: use def")
        expected = list(inspect.signature(hooks[hook]).parameters)[1:]
        try:
            inspect.signature(getattr(callback, hook)).bind(*expected)
        except TypeError as error:
            raise TypeError(f"{name}: {kind}.{hook} must take (self, {', '.join(expected)}): {error}") from error
