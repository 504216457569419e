"""The run itself: how long, where, what is logged and saved."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from verl.config.keys import key

PlacementStrategy = Literal["STRICT_PACK", "PACK", "SPREAD", "STRICT_SPREAD"]
"""Ray's."""


@dataclass
class BaseTrainerConfig:
    """What every run has."""

    project_name: str = key("verl", "project in the trackers")
    experiment_name: str = key("run", "experiment in the trackers")
    logger: list[str] = key(
        lambda: ["console", "file"],
        "trackers: console, file (JSON lines), tensorboard, wandb, mlflow, trackio, swanlab",
    )
    total_epochs: int = key(1, "passes over the training data")
    total_training_steps: int | None = key(None, "steps in all; null means total_epochs over the data")
    nnodes: int = key(1, "nodes of the cluster")
    n_gpus_per_node: int = key(1, "worker processes per node: one per GPU, or on the CPU that many processes")
    device: Literal["auto", "cpu", "cuda"] = key("auto", "where models live; auto is cuda when there is one")
    worker_group: Literal["ray", "local"] = key("ray", "Ray actors, or everything in this process (one process only)")
    balance_batch: bool = key(False, "give every process about the same number of tokens")
    val_before_train: bool = key(True, "validate before the first step")
    val_only: bool = key(False, "validate and stop")
    test_freq: int = key(-1, "validate after every this many steps, and at the end; -1 never, 0 only at the end")
    save_freq: int = key(-1, "save after every this many steps, and at the end; -1 never, 0 only at the end")
    default_local_dir: str = key("checkpoints", "folder of checkpoints, logs and dumps")
    resume_mode: Literal["auto", "disable", "resume_path"] = key("auto", "go on from the newest checkpoint, or not")
    resume_from_path: str | None = key(None, "the checkpoint folder of resume_mode=resume_path")
    seed: int = key(1, "the one seed: data order, sampling, initialisation and shuffling follow from it")
    ray_wait_register_center_timeout: int = key(300, "seconds to wait for Ray to start or answer")
    placement_timeout_s: float = key(300.0, "seconds to wait until the cluster has the devices that are asked for free")
    placement_strategy: PlacementStrategy = key(
        "STRICT_PACK", "Ray's strategy for the n_gpus_per_node processes of a node; STRICT_PACK keeps them on one"
    )
    worker_timeout_s: float = key(3600.0, "seconds after which an unanswered call to a worker is an error")


@dataclass
class TrainerConfig(BaseTrainerConfig):
    experiment_name: str = key("ppo", "experiment in the trackers")
    device_map: dict[str, Any] = key(
        dict,
        "devices by role, or a YAML file of it: {actor: {type: fsdp, devices: ['cuda:0']}, ...} (docs/placement.md)",
    )
    critic_warmup: int = key(0, "first steps that update only the critic")
    log_val_generations: int = key(0, "validation samples that are printed, and shown as a table, each time")
    rollout_data_dir: str | None = key(
        None, "folder for every step's responses with scores, a file a step; null is none"
    )
    validation_data_dir: str | None = key(None, "folder for every validation's responses with scores; null is none")
    dump_format: Literal["jsonl", "parquet"] = key("jsonl", "of the files in rollout_data_dir and validation_data_dir")


class RunConfig(Protocol):
    """The root of any run's config."""

    @property
    def trainer(self) -> BaseTrainerConfig: ...
