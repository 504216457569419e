import torch
from torch import nn

from verl.models.wrapper import copy_with_dtype


def test_a_copy_casts_parameters_alone() -> None:
    module = nn.BatchNorm1d(2)
    twin = copy_with_dtype(module, torch.bfloat16)
    assert {name: tensor.dtype for name, tensor in twin.state_dict().items()} == {
        "weight": torch.bfloat16,
        "bias": torch.bfloat16,
        "running_mean": torch.float32,
        "running_var": torch.float32,
        "num_batches_tracked": torch.int64,
    }
    with torch.no_grad():
        twin.weight.fill_(3.0)
    assert module.weight.dtype == torch.float32 and module.weight.tolist() == [1.0, 1.0]
