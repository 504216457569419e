"""vLLM's sampler with the trainer's log-probs. Written for the V1 model runner of vLLM 0.32."""

import torch
from torch import Tensor, nn
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler
from vllm.v1.sample.sampler import Sampler


class PolicySampler(Sampler):
    """Samples as vLLM does and returns log-probs under softmax(logits / temperature), before top-k and top-p.

    vLLM offers log-probs before the temperature ("raw") or after top-k and top-p ("processed"). With both a temperature
    and a filter neither is what a trainer computes. To be dropped when vLLM has such a mode.
    """

    def __init__(self) -> None:
        super().__init__("processed_logprobs")
        self.topk_topp_sampler = _LogProbsBeforeFilters()

    @staticmethod
    def gather_logprobs(logprobs: Tensor, num_logprobs: int, token_ids: Tensor) -> LogprobsTensors:
        """The log-probs [rows, 1] of `token_ids` [rows], without the ranks that vLLM compiles a kernel for."""
        ids = token_ids.unsqueeze(-1)
        return LogprobsTensors(ids.to(torch.int32), logprobs.gather(-1, ids), torch.zeros_like(token_ids))


class _LogProbsBeforeFilters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.filter_and_sample = TopKTopPSampler("raw_logprobs")

    def forward(
        self, logits: Tensor, generators: dict[int, torch.Generator], k: Tensor | None, p: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        # First, since filtering may write into the logits.
        log_probs = logits.log_softmax(dim=-1, dtype=torch.float32)
        tokens, _ = self.filter_and_sample(logits, generators, k, p)
        return tokens, log_probs


def install(model_runner: object) -> None:
    """Give a model runner of vLLM this sampler. RuntimeError when its own is another than the one tested."""
    own = getattr(model_runner, "sampler", None)
    if type(own) is not Sampler:
        raise RuntimeError(
            f"the sampler of this vLLM is {type(own).__module__}.{type(own).__name__}, whose log-probs are not the "
            "trainer's: unset VLLM_USE_V2_MODEL_RUNNER, or use vLLM 0.32"
        )
    model_runner.sampler = PolicySampler()  # type: ignore[attr-defined]
