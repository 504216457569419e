"""Generation with vLLM in the trainer's own process: continuous batching, and weights that come from the trainer.

All requests of a batch run together; one that ends makes room for the next. The samples of a prompt share the KV cache
of its full blocks. With tensor parallelism over t processes, the t engines of one replica run in step: each of them
must be given the same calls.
"""

import tempfile
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from verl.rollout.base import Completion, Sampling
from verl.rollout.requests import check_request, completion_seeds
from verl.rollout.vllm_parallel import Replica
from verl.rollout.vllm_setup import (
    VLLMSettings,
    end_groups,
    model_runner_of,
    start_engine,
    stop_engine,
    unsupported_reason,
    write_config,
)
from verl.rollout.vllm_weights import (
    CPUKVCache,
    forget_packed_vocabularies,
    pack_vocabularies_when_used,
    weight_errors,
)
from verl.utils.backends import require_backend
from verl.utils.distributed import group_of_one

WEIGHTS, KV_CACHE = "weights", "kv_cache"
CLOSED = "it was closed"


class vLLMRolloutEngine:  # noqa: N801 (the name that the field knows)
    """A `RolloutEngine` on vLLM.

    A completion follows from prompt, seed and weights alone in fp32, up to the rounding of matrix products; it is the
    one that the transformers engine makes of them.

    Args:
        model: folder (config.json is enough) or Hugging Face id, from which vLLM reads the model's shape.
        dtype: of weights and KV cache.
        device: "cpu" or "cuda"; that of the trainer.
        seed: what completions without seeds of their own follow from; give each replica another one.
        settings: the rest; see `VLLMSettings`.
        eos_token_ids: ids that end a response, besides those of `Sampling.stop_token_ids`.
        weight_names: names that every `update_weights` must bring; None does not check.
    """

    def __init__(
        self,
        model: str | Path,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        seed: int = 0,
        settings: VLLMSettings | None = None,
        eos_token_ids: Sequence[int] = (),
        weight_names: Collection[str] | None = None,
    ) -> None:
        require_backend("vllm", "vLLMRolloutEngine")
        from verl.rollout.vllm_sampler import install as install_sampler

        self.device = device
        self.settings = settings or VLLMSettings()
        self.version = -1
        self.has_weights = self.settings.load_format != "dummy"
        self.eos_token_ids = tuple(eos_token_ids)
        self.weight_names = None if weight_names is None else frozenset(weight_names)
        self._replica = Replica(self.settings.tensor_parallel_size)
        self.seed = self._replica.of_first(seed)
        self._asleep: set[str] = set()
        self._broken: str | None = None
        self._waiting: dict[str, tuple[int, ...]] = {}
        self._unseeded_calls = 0
        self._group = group_of_one(device)
        if self._group is not None:
            self._group.at_end.callback(end_groups)
        self._engine = start_engine(self.settings, str(model), dtype, device, self._replica)
        self._stop = weakref.finalize(self, stop_engine, self._engine)
        self._stop.atexit = False  # what an ending process holds goes with it
        self._runner = model_runner_of(self._engine)
        install_sampler(self._runner)
        self._cpu_cache = CPUKVCache(self._runner.kv_caches)
        if device == "cpu":
            pack_vocabularies_when_used(self._runner.get_model())
            self._clear_kv_cache()  # see `CPUKVCache`
        self.max_model_len: int = self._engine.model_config.max_model_len
        self._vocab_size: int = self._engine.model_config.get_vocab_size()

    @classmethod
    def for_module(
        cls, module: nn.Module, dtype: torch.dtype, device: str, seed: int, settings: VLLMSettings | None = None
    ) -> "vLLMRolloutEngine":
        """An engine of the architecture of `module`, a causal language model of transformers with full weights.

        Nothing is copied: `update_weights` must bring the weights. ValueError when vLLM does not run such a model.
        """
        require_backend("vllm", "vLLMRolloutEngine")
        settings = settings or VLLMSettings()
        reason = unsupported_reason(module, device, settings.tensor_parallel_size)
        if reason is not None:
            raise ValueError(f"vLLM cannot run this model: {reason}; use rollout.name=hf (or auto)")
        ends: Any = module.generation_config.eos_token_id  # type: ignore[union-attr]
        ends = () if ends is None else (ends,) if isinstance(ends, int) else ends
        names = [name for name, _ in module.named_parameters()]
        if settings.load_format != "dummy":
            return cls(_folder_of(module), dtype, device, seed, settings, ends, names)
        with tempfile.TemporaryDirectory() as folder:
            write_config(module, Path(folder))
            return cls(folder, dtype, device, seed, settings, ends, names)

    # ---- weights and memory ----

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take new weights under their Hugging Face names, in any dtype, one tensor at a time; sets `version`.

        Each layer is rebuilt when its last tensor has come, so that besides the tensor at hand only one layer is held
        twice. Requests that run go on with the new weights, and what was cached under the old ones is forgotten.

        ValueError for names that are unknown or missing. After any failure the engine is broken: vLLM cannot go back.
        """
        self._refuse_broken()
        if WEIGHTS in self._asleep:
            raise RuntimeError(f"the engine's weights sleep: call wake_up([{WEIGHTS!r}]) before update_weights()")
        given: set[str] = set()
        try:
            if self.device == "cpu":
                forget_packed_vocabularies(self._runner.get_model())
            with torch.no_grad():
                self._engine.collective_rpc(
                    "reload_weights", kwargs={"weights_iterator": _noting_names(weights, given)}
                )
            self._refuse_missing(given)
        except BaseException as error:
            self._broken = f"an update of its weights failed midway with {type(error).__name__}: {error}"
            raise
        self._forget_cache()
        self.has_weights = True
        self.version = version

    def _refuse_missing(self, given: set[str]) -> None:
        missing = sorted((self.weight_names or frozenset()) - given)
        if missing:
            raise ValueError(
                f"{len(missing)} of the rollout model's {len(self.weight_names or ())} weights were not given: "
                f"{', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''}"
            )

    def weight_errors(self, weights: Iterable[tuple[str, Tensor]]) -> dict[str, float]:
        """For each given weight, how far the engine's own is from it (0 when they agree); see `vllm_weights`."""
        self._refuse_broken()
        return weight_errors(self._runner.get_model(), weights, self._replica.rank, self._replica.size)

    def sleep(self) -> None:
        """Give memory back (see `VLLMSettings.sleep_level`). RuntimeError while requests run."""
        if self._waiting:
            raise RuntimeError(f"{len(self._waiting)} requests are running: finish or abort them before sleep()")
        level = self.settings.sleep_level
        sleepers = {KV_CACHE} if self.device == "cpu" else {WEIGHTS, KV_CACHE}
        if level == 0 or self._broken or sleepers == self._asleep:
            return
        if self.device == "cpu":
            self._forget_cache()
            self._cpu_cache.free()
        else:
            self._engine.sleep(level=level)
            self.has_weights &= level == 1
        self._asleep = sleepers

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Take back the memory of `tags`: "weights" (before an update), "kv_cache" (before generating), None is all."""
        chosen = self._asleep & ({WEIGHTS, KV_CACHE} if tags is None else set(tags))
        if not chosen:
            return
        if self.device == "cpu":
            self._cpu_cache.restore()
        else:
            self._engine.wake_up(sorted(chosen))
        self._asleep -= chosen

    def close(self) -> None:
        """End the engine and free its memory, as does losing the last reference to it.

        torch.distributed, where nobody had started it before the engines of this process, ends with the last of them.
        """
        if self._broken != CLOSED:
            self._stop()
            del self._engine, self._runner, self._cpu_cache, self._group
            self._broken = CLOSED

    def _forget_cache(self) -> None:
        if not self._engine.reset_prefix_cache(reset_running_requests=True):
            raise RuntimeError("vLLM did not drop its prefix cache: completions would mix old and new weights")

    # ---- generation ----

    def submit(self, request_id: str, prompt: Sequence[int], sampling: Sampling, seed: int) -> None:
        """Queue one completion of `prompt`; `step` returns it under `request_id`. Others may be running.

        ValueError for a prompt or sampling that cannot run, an id in use, or `sampling.n` other than 1.
        """
        self._refuse_unready()
        self._check(request_id, prompt, sampling)
        if request_id in self._waiting:
            raise ValueError(f"request id {request_id!r} is in use: give every running request its own")
        if sampling.n != 1:
            raise ValueError(f"a request is one completion, not n={sampling.n}: submit each with a seed of its own")
        self._add(request_id, prompt, sampling, seed)

    def step(self) -> list[tuple[str, Completion]]:
        """Run all queued requests one step further (a token each, or a part of a prompt) and return those that ended.

        RuntimeError when logits are not finite. When a step fails, all requests are dropped; the engine works on.
        """
        self._refuse_unready()
        try:
            with torch.no_grad():
                outputs = self._engine.step()
            return [
                (output.request_id, _completion(output, self._waiting.pop(output.request_id)))
                for output in outputs
                if output.finished
            ]
        except BaseException:
            self._drop_all()
            raise

    def abort(self, request_id: str) -> None:
        """Drop a request. KeyError when there is none of that id."""
        self._waiting.pop(request_id)
        self._engine.abort_request([request_id])

    @property
    def num_running(self) -> int:
        """Requests that were submitted and have not ended."""
        return len(self._waiting)

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int] | None = None
    ) -> list[Completion]:
        """See `RolloutEngine.generate`.

        ValueError for a prompt that is empty or leaves no room for `max_tokens` within `max_model_len`, for ids outside
        the vocabulary (also in `stop_token_ids`), for a wrong number of seeds, and, with tensor parallelism, when the
        processes of a replica were given different calls. RuntimeError when the engine sleeps, has no weights or is
        broken, when requests of `submit` are running, and when the model's logits are not finite.
        """
        self._refuse_unready()
        if self._waiting:
            raise RuntimeError(f"{len(self._waiting)} submitted requests are running: step() them to their end first")
        for row, prompt in enumerate(prompts):
            self._check(f"prompt {row}", prompt, sampling)
        self._unseeded_calls += seeds is None
        seeds = completion_seeds(seeds, len(prompts), sampling.n, self.seed, self._unseeded_calls)
        self._replica.refuse_different((prompts, sampling, seeds))
        done: dict[str, Completion] = {}
        try:
            for i, seed in enumerate(seeds):
                self._add(str(i), prompts[i // sampling.n], sampling, seed)
            while self._waiting:
                done.update(self.step())
        except BaseException:
            self._drop_all()
            raise
        return [done[str(i)] for i in range(len(seeds))]

    def _add(self, request_id: str, prompt: Sequence[int], sampling: Sampling, seed: int) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        from verl.rollout.vllm_sampler import extra_args

        stops = sorted({*sampling.stop_token_ids, *(() if sampling.ignore_eos else self.eos_token_ids)})
        params = SamplingParams(
            max_tokens=sampling.max_tokens,
            extra_args=extra_args(sampling, seed),
            skip_clone=True,  # it is this request's own
            stop_token_ids=stops,
            ignore_eos=True,  # vLLM would add the end tokens of the model's config to ours
            logprobs=0,  # those of the sampled tokens alone
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self._engine.add_request(request_id, {"prompt_token_ids": list(prompt)}, params)
        self._waiting[request_id] = tuple(stops)

    def _drop_all(self) -> None:
        """Forget every request, and what a failed step may have left: NaN, and blocks cached but never computed."""
        self._engine.abort_request(list(self._waiting))
        self._waiting.clear()
        self._forget_cache()
        self._clear_kv_cache()  # attention on a CPU reads a block to its end, where NaN would go on to the next request

    def _clear_kv_cache(self) -> None:
        if self.device == "cpu":
            self._cpu_cache.free()
            self._cpu_cache.restore()
        else:
            for cache in self._runner.kv_caches:
                cache.zero_()

    def _check(self, what: str, prompt: Sequence[int], sampling: Sampling) -> None:
        check_request(
            what,
            prompt,
            sampling,
            vocab_size=self._vocab_size,
            limit=self.max_model_len,
            limit_name="max_model_len",
        )

    def _refuse_broken(self) -> None:
        if self._broken is not None:
            raise RuntimeError(f"the vLLM engine cannot be used: {self._broken}; start the worker anew")

    def _refuse_unready(self) -> None:
        self._refuse_broken()
        if self._asleep:
            raise RuntimeError(f"the rollout engine sleeps ({', '.join(sorted(self._asleep))}): call wake_up() first")
        if not self.has_weights:
            raise RuntimeError("the rollout engine has no weights yet: call update_weights() before generating")


def _folder_of(module: Any) -> Path:
    folder = Path(module.name_or_path)
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"vLLM cannot read weights from {module.name_or_path!r}, where this model came from: "
            "use rollout.load_format=dummy"
        )
    return folder


def _noting_names(weights: Iterable[tuple[str, Tensor]], given: set[str]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in weights:
        given.add(name)
        yield name, tensor


def _completion(output: Any, stops: Sequence[int]) -> Completion:
    made = output.outputs[0]
    tokens = list(made.token_ids)
    log_probs = [entry[token].logprob for entry, token in zip(made.logprobs, tokens, strict=True)]
    for position, value in enumerate(log_probs):
        if not -float("inf") < value < float("inf"):
            raise RuntimeError(
                f"completion {output.request_id}: the model's logits at new token {position} are not finite; "
                "its weights hold NaN or overflow in this dtype"
            )
    return Completion(tokens, log_probs, "stop" if tokens[-1] in stops else "length")
