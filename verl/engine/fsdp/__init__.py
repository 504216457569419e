"""Training with PyTorch FSDP2."""

from verl.engine.fsdp.engine import FSDPEngine

__all__ = ["FSDPEngine"]
