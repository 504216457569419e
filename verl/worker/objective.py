"""What a model learns from a mini-batch, in the terms in which a worker trains any of them."""

from collections.abc import Callable
from dataclasses import dataclass

from tensordict import TensorDict
from torch import Tensor

from verl.engine.base import LossFn, MicroBatching, TrainEngine

Prepare = Callable[[TrainEngine, TensorDict, MicroBatching], TensorDict]


def _as_it_is(engine: TrainEngine, mini: TensorDict, micro: MicroBatching) -> TensorDict:
    return mini


@dataclass(frozen=True)
class Objective:
    """
    Attributes:
        loss_fn: (outputs, micro-batch) -> (loss SUM, metrics).
        count: mini-batch rows -> what the loss is divided by. Counts of the parts that ranks hold add up to the whole.
        prepare: what has to be known of a whole mini-batch before it is cut; runs on all ranks, without gradients.
    """

    loss_fn: LossFn
    count: Callable[[TensorDict], Tensor]
    prepare: Prepare = _as_it_is
