"""The transformers engine's choice of tokens in the place of vLLM's sampler. For the V1 model runner of vLLM 0.32."""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.sampler import Sampler

from verl.rollout.base import Sampling
from verl.rollout.sampling import choose, draw_noise, noise_stream


def extra_args(sampling: Sampling, seed: int) -> dict[str, Any]:
    """What `PolicySampler` must find in the `SamplingParams.extra_args` of a request."""
    how = Sampling(1, temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k)
    return {"sampling": how, "stream": None if sampling.temperature == 0 else noise_stream(seed)}


class PolicySampler(Sampler):
    """Samples by `verl.rollout.sampling.choose`, with a stream of random numbers for each request.

    So every sampling option means what it does in the transformers engine, down to the same tokens for the same seed,
    and log-probs are those under softmax(logits / temperature), before top-k and top-p. vLLM offers them before the
    temperature ("raw") or after the filters ("processed"): with both, neither is what a trainer computes. Its seeded
    sampling also fails on a CPU when a prompt is computed in pieces: it takes back the draw for an unfinished prompt,
    which torch's CPU generators cannot.
    """

    def __init__(self, model_runner: Any) -> None:
        super().__init__()
        self._runner = model_runner

    def forward(self, logits: Tensor, *_: Any, **__: Any) -> SamplerOutput:
        """Tokens and log-probs for the batch's requests from their logits [requests, V]."""
        requests = [self._runner.requests[name] for name in self._runner.input_batch.req_ids]
        unfinished = self._runner.discard_request_mask.np[: len(requests)].tolist()
        groups: dict[Sampling, list[int]] = defaultdict(list)
        for row, request in enumerate(requests):
            if not unfinished[row]:  # a prompt that is not whole yet gets no token and uses up no random numbers
                groups[request.sampling_params.extra_args["sampling"]].append(row)
        tokens = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
        log_probs = torch.zeros(len(logits), dtype=torch.float32, device=logits.device)
        for sampling, rows in groups.items():
            noise = None
            if sampling.temperature > 0:
                streams = [requests[row].sampling_params.extra_args["stream"] for row in rows]
                noise = draw_noise(streams, logits.shape[-1]).to(logits.device)
            chosen = logits if len(rows) == len(logits) else logits[rows]
            tokens[rows], log_probs[rows] = choose(chosen, noise, sampling)
        ids = tokens.to(torch.int32).unsqueeze(-1)
        return SamplerOutput(ids, LogprobsTensors(ids, log_probs.unsqueeze(-1), torch.zeros_like(tokens)))


def install(model_runner: Any) -> None:
    """Give a model runner of vLLM this sampler. RuntimeError when its own is another than the one tested."""
    own = getattr(model_runner, "sampler", None)
    if type(own) is not Sampler:
        raise RuntimeError(
            f"the sampler of this vLLM is {type(own).__module__}.{type(own).__name__}, which the trainer's cannot "
            "stand in for: unset VLLM_USE_V2_MODEL_RUNNER, or use vLLM 0.32"
        )
    model_runner.sampler = PolicySampler(model_runner)
