"""Where metrics go: the console, a file, TensorBoard and other trackers. Only those that are named get imported."""

from verl.utils.tracking.tracker import BACKENDS, Tracking

__all__ = ["BACKENDS", "Tracking"]
