"""Keys that public launch scripts set and that this version does not have, each with the reason.

Such a key is accepted, with a line in the log, as long as its value changes nothing here; any other value is refused.
Where a feature has a switch, the switch decides and its other settings are accepted. When a feature arrives, its rows
move out of this table and its keys into the dataclasses.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

Values = tuple[Any, ...] | None

ANY: Values = None
NEVER: Values = ()
OFF: Values = (False, None)
UNSET: Values = (None, "", [], {})


@dataclass(frozen=True)
class Unsupported:
    """A key, or a pattern of keys in which `*` stands for anything, and the values that change nothing here."""

    pattern: str
    accepted: Values
    reason: str

    def accepts(self, value: Any) -> bool:
        return self.accepted is None or value in self.accepted


def find_unsupported(path: str) -> Unsupported | None:
    """The first row whose pattern fits `path`."""
    return next((row for row in UNSUPPORTED if fnmatchcase(path, row.pattern)), None)


def _because(reason: str, keys: Mapping[str, Values]) -> list[Unsupported]:
    return [Unsupported(pattern, accepted, reason) for pattern, accepted in keys.items()]


_ROLLOUT = "actor_rollout_ref.rollout"
_ACTOR = "actor_rollout_ref.actor"

UNSUPPORTED: tuple[Unsupported, ...] = (
    # ---- generation ----
    *_because(
        "a replica of the rollout engine spans the tensor_model_parallel_size processes that train, and there are as "
        "many replicas as fit; other ways to split it are not part of this version",
        {
            f"{_ROLLOUT}.data_parallel_size": (1,),
            f"{_ROLLOUT}.expert_parallel_size": (1,),
            f"{_ROLLOUT}.pipeline_model_parallel_size": (1,),
        },
    ),
    *_because(
        "vLLM runs in the trainer's processes with its own choice; set it in rollout.engine_kwargs.vllm",
        {
            f"{_ROLLOUT}.disable_log_stats": ANY,
            f"{_ROLLOUT}.multi_stage_wake_up": ANY,
            f"{_ROLLOUT}.cudagraph_capture_sizes": ANY,
            f"{_ROLLOUT}.skip_tokenizer_init": ANY,
            f"{_ROLLOUT}.prometheus.*": ANY,
        },
    ),
    *_because(
        "the log-probs of sampled tokens are always kept and compared with the trainer's",
        {f"{_ROLLOUT}.calculate_log_probs": ANY},
    ),
    *_because(
        "the rollout gets its weights from the trainer in memory",
        {
            f"{_ROLLOUT}.layered_summon": ANY,
            f"{_ROLLOUT}.checkpoint_engine.*": ANY,
        },
    ),
    *_because(
        "generation is synchronous: asynchronous and agent rollouts are not part of this version",
        {
            f"{_ROLLOUT}.mode": ("sync",),
            f"{_ROLLOUT}.agent.*": ANY,
            f"{_ROLLOUT}.over_sample_rate": (0,),
            f"{_ROLLOUT}.trace.*": UNSET,
            "async_training.*": NEVER,
            "transfer_queue.enable": OFF,
        },
    ),
    *_because(
        "multi-turn rollouts and tools are not part of this version",
        {
            f"{_ROLLOUT}.multi_turn.enable": OFF,
            f"{_ROLLOUT}.multi_turn.*": ANY,
            "data.tool_config_path": UNSET,
            "data.need_tools_kwargs": OFF,
        },
    ),
    *_because(
        "penalised sampling is not part of this version: its log-probs would differ from the trainer's",
        {
            f"{_ROLLOUT}.repetition_penalty": (1,),
            f"{_ROLLOUT}.val_kwargs.repetition_penalty": (1,),
            f"{_ROLLOUT}.use_fire_sampling": OFF,
        },
    ),
    *_because(
        "quantized generation is not part of this version",
        {f"{_ROLLOUT}.quantization": UNSET, f"{_ROLLOUT}.quantization_config_file": UNSET},
    ),
    # ---- training: layout and memory ----
    *_because(
        "sequence parallelism is not part of this version",
        {"*.ulysses_sequence_parallel_size": (1,)},
    ),
    *_because(
        "the training engine is FSDP2, by either name; Megatron is not part of this version",
        {
            "*.strategy": ("fsdp", "fsdp2"),
            "*.megatron.*": NEVER,
            "*.override_transformer_config.*": NEVER,
            "model_engine": ("dp",),
        },
    ),
    *_because(
        "offloading while a model is in use is not part of this version; "
        "param_offload and optimizer_offload free the device between uses",
        {"*.offload_policy": OFF, "*.enable_activation_offload": OFF},
    ),
    *_because(
        "it tunes the speed of FSDP1; FSDP2 shards layer by layer and prefetches by itself",
        {"*.forward_prefetch": ANY, "*.use_orig_params": ANY, "*.wrap_policy.*": ANY, "*.buffer_dtype": ANY},
    ),
    *_because(
        "log-probs and entropy are always computed chunk by chunk, without the full matrix of logits",
        {
            "*.entropy_from_logits_with_chunking": ANY,
            "*.entropy_checkpointing": ANY,
            "*.use_fused_kernels": ANY,
            "*.fused_kernel_options.*": ANY,
        },
    ),
    *_because(
        "it changes speed and memory, not results; this version neither compiles nor replaces kernels",
        {"*.use_torch_compile": ANY, "*.use_liger": ANY, "*.tiled_mlp.*": ANY, "*.use_shm": ANY},
    ),
    *_because(
        "a batch size of all processes together is not taken; set the one that ends in _per_gpu",
        {
            f"{_ACTOR}.ppo_micro_batch_size": UNSET,
            "critic.ppo_micro_batch_size": UNSET,
            "critic.forward_micro_batch_size": UNSET,
            "*.log_prob_micro_batch_size": UNSET,
            "reward.reward_model.micro_batch_size": UNSET,
        },
    ),
    *_because(
        "values are computed in the micro-batches of training",
        {"critic.forward_micro_batch_size_per_gpu": ANY, "critic.forward_max_token_len_per_gpu": ANY},
    ),
    *_because(
        "scores are computed in micro-batches of samples (micro_batch_size_per_gpu)",
        {
            "reward.reward_model.use_dynamic_bsz": OFF,
            "reward.reward_model.forward_max_token_len_per_gpu": ANY,
        },
    ),
    *_because(
        "LoRA is not part of this version",
        {
            "*.model.lora_rank": (0,),
            "*.model.lora_alpha": ANY,
            "*.model.lora_adapter_path": UNSET,
            "*.model.target_modules": ANY,
            "*.model.exclude_modules": ANY,
            "*.model.lora.*": UNSET,
        },
    ),
    # ---- the optimizer ----
    *_because(
        "the schedule spans trainer.total_training_steps",
        {"*.optim.total_training_steps": (-1, None)},
    ),
    *_because(
        "AdamW of torch is the optimizer, and the cosine has half a period",
        {
            "*.optim.optimizer_impl": ("torch.optim",),
            "*.optim.override_optimizer_config": UNSET,
            "*.optim.num_cycles": (0.5,),
        },
    ),
    # ---- the algorithm ----
    *_because(
        "corrections between rollout and trainer are set in algorithm.rollout_correction.{rollout_is, rollout_rs, ...}",
        {"algorithm.rollout_is": OFF, f"{_ACTOR}.tis_imp_ratio_cap": (-1, None)},
    ),
    *_because(
        "dynamic sampling draws batches of data.train_batch_size prompts",
        {"data.gen_batch_size": UNSET},
    ),
    *_because(
        "preference feedback PPO is not part of this version",
        {"algorithm.use_pf_ppo": OFF, "algorithm.pf_ppo.*": ANY},
    ),
    *_because(
        "this version has no such term",
        {
            f"{_ACTOR}.calculate_sum_pi_squared": OFF,
            f"{_ACTOR}.use_prefix_grouper": OFF,
            f"{_ACTOR}.calculate_entropy": ANY,
        },
    ),
    # ---- data ----
    *_because(
        "images, video and audio are not part of this version",
        {
            "data.image_key": ("images", None),
            "data.video_key": ("videos", None),
            "data.return_multi_modal_inputs": ANY,
            f"{_ACTOR}.freeze_vision_tower": OFF,
            f"{_ROLLOUT}.limit_images": ANY,
        },
    ),
    *_because(
        "data sets that make their own rows are classes of data.custom_cls",
        {"data.datagen.path": UNSET, "data.datagen.name": UNSET},
    ),
    *_because(
        "the batch holds the chat (data.return_raw_chat) and the ids that the model sees, nothing else",
        {"data.return_raw_input_ids": OFF, "data.return_full_prompt": OFF},
    ),
    *_because(
        "the tokenizer is that of the model; set actor_rollout_ref.model.tokenizer_path for another one",
        {"data.tokenizer": UNSET},
    ),
    *_because("validation visits every prompt once, in order", {"data.validation_shuffle": OFF}),
    *_because(
        "trainer.seed is the one seed of a run (data.seed may differ for the order of prompts)",
        {
            f"{_ROLLOUT}.seed": (0, None),
            f"{_ACTOR}.data_loader_seed": (1, 42, None),
            "critic.data_loader_seed": (42, None),
        },
    ),
    # ---- rewards ----
    *_because(
        "code is run in a local subprocess with limits, not by a sandbox server",
        {"reward.sandbox_fusion.url": UNSET, "reward.sandbox_fusion.*": ANY},
    ),
    *_because(
        "the reward model runs in the training engine, not in an inference engine; "
        "trainer.device_map puts it on devices of its own (docs/placement.md)",
        {
            "reward.reward_model.rollout.*": ANY,
            "reward.reward_model.enable_resource_pool": OFF,
            "reward.reward_model.n_gpus_per_node": ANY,
            "reward.reward_model.nnodes": ANY,
        },
    ),
    *_because(
        "texts are read again with the reward model's own tokenizer (reward.reward_model.model.tokenizer_path)",
        {"reward.reward_model.model.input_tokenizer": ANY},
    ),
    # ---- the run ----
    *_because(
        "waits for processes have one limit, trainer.worker_timeout_s",
        {"actor_rollout_ref.nccl_timeout": ANY},
    ),
    *_because(
        "actor, rollout and reference share their processes unless trainer.device_map puts them on different devices "
        "(docs/placement.md)",
        {"actor_rollout_ref.hybrid_engine": (True,)},
    ),
    *_because(
        "all checkpoints are kept, whole, on the local disk",
        {
            "*.checkpoint.save_contents": (["model", "optimizer", "extra"], None),
            "*.checkpoint.load_contents": (["model", "optimizer", "extra"], None),
            "*.checkpoint.async_save": OFF,
            "trainer.max_actor_ckpt_to_keep": UNSET,
            "trainer.max_critic_ckpt_to_keep": UNSET,
            "trainer.remove_previous_ckpt_in_save": OFF,
            "trainer.del_local_ckpt_after_load": OFF,
            "trainer.default_hdfs_dir": UNSET,
            "trainer.esi_redundant_time": (0, None),
        },
    ),
    *_because("every step is logged", {"trainer.log_freq": (1,)}),
    *_because(
        "profilers are not part of this version; timings of every step are in the metrics",
        {
            "*profiler.enable": OFF,
            "*profiler.tool": ANY,
            "*profiler.steps": UNSET,
            "trainer.profile_steps": UNSET,
            "trainer.npu_profile.*": UNSET,
        },
    ),
    *_because(
        "Ray starts, or is attached to, with what trainer.nnodes and trainer.n_gpus_per_node ask for",
        {"ray_init.*": UNSET, "ray_kwargs.*": UNSET},
    ),
    *_because("there is one trainer, and it needs no switch", {"trainer.use_legacy_worker_impl": ANY}),
    *_because(
        "it is derived: samples per prompt are actor_rollout_ref.rollout.n",
        {f"{_ACTOR}.rollout_n": ANY, "critic.rollout_n": ANY},
    ),
    *_because(
        "the model classes are chosen by the model's own config.json",
        {"*.model.external_lib": UNSET, "*.model.hf_config_path": UNSET},
    ),
    *_because(
        "Hydra is not used: one YAML file by --config, and key=value on the command line",
        {"hydra.*": NEVER, "defaults": NEVER, "_target_": ANY, "*._target_": ANY},
    ),
)
