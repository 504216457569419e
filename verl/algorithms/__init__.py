"""Pure functions on tensors: advantages, losses, KL. They know neither models nor processes."""
