"""The policy: the model that is trained (actor), that samples (rollout) and that stays as it was (ref)."""

from dataclasses import dataclass
from typing import Any, Literal

from verl.config.keys import key
from verl.config.model import Dtype, FSDPConfig, ModelConfig, OptimConfig


@dataclass
class PolicyLossConfig:
    loss_mode: str = key("vanilla", "a policy loss by name, or `package.module:function`")
    loss_kwargs: dict[str, Any] = key(dict, "keyword arguments of the chosen policy loss (see docs/algorithms.md)")


@dataclass
class PolicyTrainingConfig:
    """How a policy is trained, whatever it learns from."""

    ppo_mini_batch_size: int | None = key(None, "rows per optimizer step; null means data.train_batch_size")
    ppo_micro_batch_size_per_gpu: int | None = key(
        None, "samples or pairs per forward and backward pass of one process; null takes its share of the mini-batch"
    )
    use_dynamic_bsz: bool = key(False, "cut micro-batches by tokens instead of by samples or pairs")
    ppo_max_token_len_per_gpu: int = key(16384, "tokens per micro-batch of one process, with use_dynamic_bsz")
    ppo_epochs: int = key(1, "passes over the batch of a step")
    optim: OptimConfig = key(OptimConfig, "the policy's optimizer")
    fsdp_config: FSDPConfig = key(FSDPConfig, "how the policy is sharded")


@dataclass
class ActorConfig(PolicyTrainingConfig):
    ppo_mini_batch_size: int = key(256, "prompts (not samples) per optimizer step")
    shuffle: bool = key(False, "visit the samples of a step in a seeded random order")
    clip_ratio: float = key(0.2, "PPO clip range; clip_ratio_low and clip_ratio_high replace it on their side")
    clip_ratio_low: float | None = key(None, "lower clip range; null means clip_ratio")
    clip_ratio_high: float | None = key(None, "upper clip range; null means clip_ratio")
    clip_ratio_c: float = key(3.0, "dual-clip bound of the loss for negative advantages; must be above 1")
    policy_loss: PolicyLossConfig = key(PolicyLossConfig, "which policy loss")
    loss_agg_mode: str = key(
        "token-mean", "token-mean, token-sum, seq-mean-token-sum, seq-mean-token-mean or seq-mean-token-sum-norm"
    )
    loss_scale_factor: float | None = key(
        None, "the constant length of seq-mean-token-sum-norm; null means data.max_response_length"
    )
    entropy_coeff: float = key(0.0, "weight of the entropy bonus")
    use_kl_loss: bool = key(False, "add kl_loss_coef * KL(actor, ref) to the loss")
    kl_loss_coef: float = key(0.001, "weight of the KL loss")
    kl_loss_type: str = key("low_var_kl", "estimator of the KL loss: kl (k1), abs, mse (k2) or low_var_kl (k3)")


@dataclass
class SamplingConfig:
    temperature: float = key(1.0, "softmax temperature; 0 is greedy")
    top_p: float = key(1.0, "sample from the smallest set of tokens with this probability; 1 is all")
    top_k: int = key(-1, "sample from this many most likely tokens; -1 is all")
    n: int = key(1, "samples per prompt")
    do_sample: bool = key(True, "false decodes greedily")


@dataclass
class ValSamplingConfig(SamplingConfig):
    temperature: float = key(0.0, "softmax temperature of validation; 0 is greedy")
    do_sample: bool = key(False, "false decodes greedily")


@dataclass
class RolloutConfig(SamplingConfig):
    name: str = key(
        "hf", "the generation engine: hf (transformers), vllm, or auto: vllm where it is installed and runs the model"
    )
    prompt_length: int | None = key(None, "prompt width in tokens; null means data.max_prompt_length")
    response_length: int | None = key(None, "most new tokens of a response; null means data.max_response_length")
    dtype: Dtype = key("auto", "dtype of the weights while generating; auto is the actor's compute dtype")
    ignore_eos: bool = key(False, "go on to the full response length after an end token")
    stop_token_ids: list[int] = key(list, "ids that end a response besides the model's own end tokens")
    micro_batch_size: int | None = key(None, "hf: samples generated at once by one process; null goes by memory")
    tensor_model_parallel_size: int = key(1, "vllm: processes that share one copy of the model while generating")
    max_model_len: int | None = key(None, "vllm: most tokens of a sequence; null means prompt_length + response_length")
    max_num_seqs: int | None = key(
        None, "vllm: sequences generated at once; null is 64 on a CPU, vLLM's choice on CUDA"
    )
    max_num_batched_tokens: int | None = key(None, "vllm: most tokens of one forward pass; null is vLLM's choice")
    gpu_memory_utilization: float = key(
        0.5, "vllm: share of the GPU for weights and KV cache; on a CPU, of free memory for the KV cache at most"
    )
    enforce_eager: bool | None = key(None, "vllm: run without compiled graphs; null does so on a CPU only")
    enable_prefix_caching: bool = key(True, "vllm: compute the equal beginnings of sequences once")
    enable_chunked_prefill: bool | None = key(None, "vllm: long prompts in pieces beside others; null is vLLM's choice")
    load_format: Literal["dummy", "auto", "safetensors"] = key(
        "dummy", "vllm: dummy starts without weights, as the trainer brings them; the others read model.path first"
    )
    free_cache_engine: bool = key(True, "vllm: give weights (on CUDA) and KV cache back while training")
    sleep_level: int = key(2, "with free_cache_engine on CUDA: 1 keeps the weights in CPU memory, 2 drops them")
    update_weights_bucket_megabytes: int = key(512, "MiB of weights gathered at a time for the rollout engine")
    check_weight_sync: bool = key(False, "for finding faults: compare all weights of both engines after every update")
    max_logprob_diff: float | None = key(
        None, "stop when a sampled token's log-prob differs by more between rollout and trainer; null never does"
    )
    engine_kwargs: dict[str, Any] = key(dict, "engine_kwargs.vllm.*: further engine arguments of vLLM, by its names")
    log_prob_micro_batch_size_per_gpu: int | None = key(
        None, "samples per forward pass of old log-probs; null means actor.ppo_micro_batch_size_per_gpu"
    )
    log_prob_use_dynamic_bsz: bool | None = key(
        None, "cut these micro-batches by tokens; null means actor.use_dynamic_bsz, unless the size above is set"
    )
    log_prob_max_token_len_per_gpu: int | None = key(
        None, "tokens per micro-batch, with log_prob_use_dynamic_bsz; null means actor.ppo_max_token_len_per_gpu"
    )
    val_kwargs: ValSamplingConfig = key(ValSamplingConfig, "sampling of validation")


@dataclass
class RefConfig:
    log_prob_micro_batch_size_per_gpu: int | None = key(
        None, "samples per forward pass; null means actor.ppo_micro_batch_size_per_gpu"
    )
    log_prob_use_dynamic_bsz: bool | None = key(
        None, "cut micro-batches by tokens; null means actor.use_dynamic_bsz, unless the size above is set"
    )
    log_prob_max_token_len_per_gpu: int | None = key(
        None, "tokens per micro-batch, with log_prob_use_dynamic_bsz; null means actor.ppo_max_token_len_per_gpu"
    )
    fsdp_config: FSDPConfig = key(FSDPConfig, "how the reference is sharded; param_offload frees it between uses")
    unload: bool = key(False, "drop the reference from memory after every use and read it from disk again")


@dataclass
class ActorRolloutRefConfig:
    model: ModelConfig = key(ModelConfig, "the policy's model")
    actor: ActorConfig = key(ActorConfig, "training of the policy")
    rollout: RolloutConfig = key(RolloutConfig, "generation with the policy")
    ref: RefConfig = key(RefConfig, "the frozen reference policy")
