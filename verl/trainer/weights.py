"""From the actor to the rollout: within their processes, or between those of two groups."""

from typing import Any

from verl.utils.metrics import Metrics
from verl.workers import Task, run_together


def connect(actor: Any, rollout: Any, timeout_s: float) -> None:
    """Join a group that trains and one that generates by a weight channel, and bring the weights across.

    Nothing to do when they are one.
    """
    if rollout is actor:
        return
    host, port = actor.open_weight_channel()
    joins = [
        Task("actor.join_weight_channel", lambda: actor.join_weight_channel(rollout.world_size), actor),
        Task("rollout.join_weight_channel", lambda: rollout.join_weight_channel(host, port), rollout),
    ]
    run_together(joins, timeout_s)
    sync(actor, rollout, timeout_s)


def sync(actor: Any, rollout: Any, timeout_s: float) -> list[Metrics]:
    """Bring the rollout to the actor's weights. Returns the metrics of the processes that sent them."""
    if rollout is actor:
        return list(actor.sync_weights())
    ends = [
        Task("actor.send_weights", actor.send_weights, actor),
        Task("rollout.receive_weights", rollout.receive_weights, rollout),
    ]
    sent, _ = run_together(ends, timeout_s)
    return [sent[0]]  # rank 0 sends for all
