"""What a model is and how it is trained: keys that actor, critic, reference and reward model share."""

from dataclasses import dataclass
from typing import Any, Literal

from verl.config.keys import key

Dtype = Literal["auto", "fp32", "bf16", "fp16"]


@dataclass
class ModelConfig:
    path: str | None = key(None, "Hugging Face id, local folder, or .gguf file of the model")
    tokenizer_path: str | None = key(None, "where the tokenizer is; by default in `path`")
    trust_remote_code: bool = key(False, "run the Python code that comes with the model")
    use_remove_padding: bool = key(False, "pack the rows of a micro-batch end to end, so that padding costs nothing")
    enable_gradient_checkpointing: bool = key(False, "recompute activations in the backward pass to save memory")
    attn_implementation: str = key("sdpa", "transformers' attention kernel: sdpa, eager or flash_attention_2")
    override_config: dict[str, Any] = key(dict, "values that replace those in the model's own config.json")


@dataclass
class OptimConfig:
    optimizer: Literal["AdamW"] = key("AdamW", "the optimizer")
    lr: float = key(1e-6, "peak learning rate")
    betas: list[float] = key(lambda: [0.9, 0.999], "AdamW's decay rates of the two moments")
    eps: float = key(1e-8, "AdamW's epsilon")
    weight_decay: float = key(0.01, "decoupled weight decay; norms, biases and other vectors are never decayed")
    clip_grad: float = key(1.0, "largest L2 norm of the whole gradient; 0 turns clipping off")
    lr_warmup_steps: int = key(0, "optimizer steps of linear warm-up: step k of w uses lr * k / w")
    lr_warmup_steps_ratio: float = key(0.0, "warm-up as a share of all steps; used when lr_warmup_steps is 0")
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = key("constant", "shape of the decay after warm-up")
    min_lr_ratio: float = key(0.0, "the learning rate at the end of the decay, as a share of lr")


@dataclass
class MixedPrecisionConfig:
    param_dtype: Dtype = key("auto", "dtype of compute; auto is bf16 on CUDA and fp32 on the CPU")
    reduce_dtype: Dtype = key("fp32", "dtype of the gradient reduction between processes")


@dataclass
class FSDPConfig:
    model_dtype: Dtype = key("fp32", "dtype of the master weights that the optimizer updates")
    mixed_precision: MixedPrecisionConfig = key(MixedPrecisionConfig, "dtypes of compute and reduction")
    fsdp_size: int = key(-1, "processes that share one copy of the model; -1 is all of them")
    reshard_after_forward: bool = key(True, "free the gathered weights of a layer after its forward pass")
    param_offload: bool = key(False, "keep weights on the CPU while this model is not in use")
    optimizer_offload: bool = key(False, "keep the optimizer's state on the CPU while it is not in use")
