"""Law 2: one batch gives one gradient, however it is cut, ordered, laid out and spread over processes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tensordict import TensorDict
from torch import Tensor, nn

from tests.conftest import build_ragged_batch, build_tiny_model
from verl.config import FSDPConfig, OptimConfig
from verl.engine.base import MicroBatching, Outputs
from verl.engine.fsdp.engine import FSDPEngine
from verl.engine.fsdp.sharding import full_tensor
from verl.models.policy import PolicyModel
from verl.models.value import ValueModel
from verl.models.wrapper import ModelWrapper
from verl.utils.metrics import Metrics, Sum

BATCH = build_ragged_batch(rows=7)
TOKENS = int(BATCH["response_mask"].sum())


class CausalMixer(nn.Module):
    """A user's own causal model with layers: each adds a function of the running mean."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(128, 16), nn.Linear(16, 128, bias=False)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x, count = self.embedding(tokens), torch.arange(1, tokens.shape[1] + 1)[:, None]
        for layer in self.layers:
            x = x + torch.tanh(layer(x.cumsum(1) / count))
        return self.head(x)


@dataclass
class Setting:
    micro: MicroBatching = MicroBatching()
    reverse: bool = False
    remove_padding: bool = False
    gradient_checkpointing: bool = False
    reshard_after_forward: bool = True
    fsdp_size: int = -1


SETTINGS = {
    "all": Setting(),
    "one row": Setting(MicroBatching(rows=1)),
    "three rows": Setting(MicroBatching(rows=3)),
    "tokens": Setting(MicroBatching(max_tokens=12)),
    "other order": Setting(MicroBatching(rows=3), reverse=True),
    "gradient checkpointing": Setting(MicroBatching(rows=3), gradient_checkpointing=True),
    "deferred reduction": Setting(MicroBatching(rows=1), reshard_after_forward=False),
    "checkpointing, deferred": Setting(MicroBatching(rows=2), gradient_checkpointing=True, reshard_after_forward=False),
}
PACKED = {
    "packed": Setting(remove_padding=True),
    "packed, two rows": Setting(MicroBatching(rows=2), remove_padding=True),
}


def build(kind: str) -> ModelWrapper:
    torch.manual_seed(0)
    if kind == "user module":
        return PolicyModel(CausalMixer())
    if kind == "critic":
        critic = ValueModel(build_tiny_model("llama").base_model)
        nn.init.normal_(critic.value_head.weight)
        return critic
    if kind == "tied llama":
        return PolicyModel(build_tiny_model("llama", tie_word_embeddings=True))
    return PolicyModel(build_tiny_model(kind))


def policy_loss(outputs: Outputs, batch: TensorDict) -> tuple[Tensor, Metrics]:
    mask = batch["response_mask"]
    loss = ((outputs["log_probs"] * batch["weight"] + 0.3 * outputs["entropy"]) * mask).sum()
    return loss, {"tokens": Sum(mask.sum())}


def value_loss(outputs: Outputs, batch: TensorDict) -> tuple[Tensor, Metrics]:
    error = (outputs["values"] - batch["weight"]) * batch["response_mask"]
    return error.square().sum(), {"tokens": Sum(batch["response_mask"].sum())}


def gradient(kind: str, setting: Setting) -> tuple[dict[str, Tensor], float]:
    """The whole gradient by name, and the tokens that this process's metrics counted."""
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    config = FSDPConfig(reshard_after_forward=setting.reshard_after_forward, fsdp_size=setting.fsdp_size)
    engine = FSDPEngine(
        build(kind), config, OptimConfig(), "cpu", gradient_checkpointing=setting.gradient_checkpointing
    )
    batch = BATCH[rank::world]  # 7 rows: processes get different numbers of rows and of micro-batches
    if setting.reverse:
        batch = batch[list(range(len(batch)))[::-1]]
    kwargs = {"remove_padding": setting.remove_padding}
    if kind == "critic":
        metrics = engine.forward_backward(batch, value_loss, TOKENS, setting.micro, **kwargs)
    else:
        metrics = engine.forward_backward(
            batch, policy_loss, TOKENS, setting.micro, temperature=0.8, compute_entropy=True, **kwargs
        )
    gradients = {name: full_tensor(p.grad) for name, p in engine.module.named_parameters() if p.grad is not None}
    return gradients, metrics["tokens"].value()


def gradients(kind: str, settings: dict[str, Setting]) -> dict[str, tuple[dict[str, Tensor], float]]:
    return {name: gradient(kind, setting) for name, setting in settings.items()}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], what: str) -> None:
    assert found.keys() == expected.keys()
    scale = max(float(g.abs().max()) for g in expected.values())
    for name, g in expected.items():
        difference = float((found[name] - g).abs().max())
        assert difference <= 1e-5 * scale, f"{what}: {name} differs by {difference} (largest gradient {scale})"


@pytest.mark.parametrize("kind", ["llama", "tied llama", "qwen3", "gpt2", "opt", "user module", "critic"])
def test_in_one_process(kind: str) -> None:
    expected, tokens = gradient(kind, Setting())
    assert tokens == TOKENS
    for name, (found, counted) in gradients(kind, all_settings(kind)).items():
        assert_same(found, expected, name)
        assert counted == TOKENS


def plain_gradient(kind: str) -> dict[str, Tensor]:
    """By plain autograd on the whole batch: no engine."""
    module = build(kind)
    outputs = module(BATCH, temperature=0.8, compute_entropy=True)
    (policy_loss(outputs, BATCH)[0] / TOKENS).backward()
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def test_it_is_the_gradient_of_sum_over_denominator() -> None:
    assert_same(gradient("llama", Setting())[0], plain_gradient("llama"), "engine")


def all_settings(kind: str) -> dict[str, Setting]:
    return SETTINGS | (PACKED if build(kind).supports_packing else {})


def gradients_of_kinds(kinds: list[str]) -> dict[str, dict[str, tuple[dict[str, Tensor], float]]]:
    return {kind: gradients(kind, all_settings(kind)) for kind in kinds}


def test_on_two_processes(run_distributed: Callable[..., list[Any]]) -> None:
    kinds = ["tied llama", "gpt2", "user module", "critic"]
    ranks = run_distributed(gradients_of_kinds, 2, kinds)
    for kind in kinds:
        expected, _ = gradient(kind, Setting())
        for name in all_settings(kind):
            first, second = ranks[0][kind][name], ranks[1][kind][name]
            assert_same(first[0], expected, f"{kind}, {name} on 2 processes")
            assert first[1] + second[1] == TOKENS


def test_replicas_of_shards(run_distributed: Callable[..., list[Any]]) -> None:
    settings = {
        "2 x 2": Setting(MicroBatching(rows=1), fsdp_size=2),
        "4 x 1": Setting(MicroBatching(rows=1), fsdp_size=1),
    }
    expected, _ = gradient("llama", Setting())
    for name, (found, _) in run_distributed(gradients, 4, "llama", settings)[0].items():
        assert_same(found, expected, name)


def weights_that_differ_and_a_size_that_does_not_fit() -> tuple[dict[str, Tensor], str]:
    torch.manual_seed(dist.get_rank())
    engine = FSDPEngine(PolicyModel(CausalMixer()), FSDPConfig(), OptimConfig(), "cpu")
    with pytest.raises(ValueError) as error:
        FSDPEngine(PolicyModel(CausalMixer()), FSDPConfig(fsdp_size=3), OptimConfig(), "cpu")
    return dict(engine.named_weights()), str(error.value)


def test_processes_agree_before_they_start(run_distributed: Callable[..., list[Any]]) -> None:
    torch.manual_seed(0)
    expected = dict(CausalMixer().named_parameters())
    for weights, message in run_distributed(weights_that_differ_and_a_size_that_does_not_fit, 2):
        assert weights.keys() == expected.keys()
        assert all(torch.equal(weights[name], expected[name]) for name in expected)
        assert message == "fsdp_config.fsdp_size=3 must be -1 or divide the number of processes, 2"
