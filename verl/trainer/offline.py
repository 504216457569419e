"""Training without rollouts as one driver loop: supervised fine-tuning, reward models, preference learning.

One step, as the data sees it:

    loader -> rows: input_ids, attention_mask, response_mask            driver
      1 prepare    (preferences) ref_sequence_log_probs   <- ref
      2 update     mini-batches -> loss, optimizer step   -> the model
      3 validate (evaluate <- the model), save, log
"""

import logging
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from torch import nn
from tqdm import tqdm

from verl.algorithms.preference_losses import PreferencePairs, get_preference_loss, loss_arguments
from verl.algorithms.registry import check_keywords
from verl.config import ModelConfig, PreferenceConfig
from verl.config.loader import to_dict
from verl.config.validate_offline import OfflineConfig, resolve_offline, validate_offline
from verl.data import build_dataloader
from verl.models.loading import check_model_folder, load_model_tokenizer
from verl.protocol import DataProto
from verl.trainer.checkpoint import Checkpoints, all_done, tell_results
from verl.trainer.launch import due, load_models, placement, running, shut_down, start_worker_groups
from verl.trainer.loaders import endless, first_items
from verl.trainer.metrics import throughput_metrics
from verl.trainer.steps import for_workers
from verl.utils.events import DRIVER, phase
from verl.utils.metrics import Metrics, merge_metrics, metric_values
from verl.utils.tracking import Tracking

logger = logging.getLogger("verl.trainer.offline")

Config = TypeVar("Config", bound=OfflineConfig)


def checked(config: Config, given: Collection[str] = ()) -> Config:
    """The resolved config. ValueError lists what is wrong with it; no model is loaded for that."""
    config = resolve_offline(config)
    if isinstance(config, PreferenceConfig):
        loss = get_preference_loss(config.algorithm.name)
        validate_offline(config, pairs_only=loss.takes is PreferencePairs, given=given)
        check_keywords(loss.fn, loss_arguments(config.algorithm), "algorithm")
    else:
        validate_offline(config, given=given)
    return config


class OfflineTrainer(Generic[Config]):
    """Base of the trainers; a subclass says which data, which workers, and what rows lack.

    Args:
        config: the run; resolved and checked here, before any model loads (ValueError lists what is wrong).
        tokenizer: by default the one of the configured model.
        role_worker_mapping: role -> Worker subclass, in the place of the standard ones.
        resource_pool_manager, ray_worker_group_cls: where the roles live; by default as `config.trainer` says.
        train_dataset, val_dataset: by default the files of `config.data`. A data set of one's own may have a method
            `collate_fn` from a list of its items to columns.
        modules: role -> nn.Module whose weights the role starts from, instead of its configured path.
    """

    model_role = "model"

    def __init__(
        self,
        config: Config,
        tokenizer: Any = None,
        role_worker_mapping: dict[str, Any] | None = None,
        resource_pool_manager: Any = None,
        ray_worker_group_cls: Any = None,
        train_dataset: Any = None,
        val_dataset: Any = None,
        modules: dict[str, nn.Module] | None = None,
    ) -> None:
        self.modules = modules or {}
        given = {
            "data.train_files": train_dataset,
            "data.val_files": val_dataset,
            "model.path": self.modules.get(self.model_role),
        }
        self.config = checked(config, given=[key for key, value in given.items() if value is not None])
        self.tokenizer = tokenizer or load_model_tokenizer(self.model_config(), self.config.data.chat_template)
        self.role_worker_mapping = role_worker_mapping or self.roles()
        self.resource_pool_manager, self.ray_worker_group_cls = placement(
            self.config, self.role_worker_mapping, resource_pool_manager, ray_worker_group_cls
        )
        self._load_data(train_dataset, val_dataset)
        self.worker_groups: dict[str, Any] = {}
        self.global_step = 0
        trainer = self.config.trainer
        self.checkpoints = Checkpoints(Path(trainer.default_local_dir), trainer)
        self.checkpoints.check()
        # Before any model loads: a tracker that cannot log in must say so now.
        self.tracking = Tracking(
            trainer.project_name,
            trainer.experiment_name,
            default_backend=trainer.logger,
            config=to_dict(self.config),
            directory=trainer.default_local_dir,
        )

    # ---- what a subclass says ----

    def model_config(self) -> ModelConfig:
        """The model that is trained."""
        raise TypeError(f"{type(self).__name__} must say which model it trains: define model_config()")

    def roles(self) -> dict[str, Any]:
        """Role -> Worker subclass; the role `model_role` has `update` and `evaluate`."""
        raise TypeError(f"{type(self).__name__} must say which workers it needs: define roles()")

    def build_dataset(self, files: Any, max_samples: int) -> Any:
        raise TypeError(f"{type(self).__name__} must say how it reads data: define build_dataset()")

    def mini_batch_size(self) -> int:
        """Rows per optimizer step."""
        return self.config.data.train_batch_size

    def prepare(self, rows: DataProto, split: str, timings: dict[str, float]) -> DataProto:
        """Rows of the loader with all columns that the worker reads; `split` is train or val."""
        return rows

    def before_training(self) -> None:
        """What is to be done once, with the models loaded."""

    # ---- before the loop ----

    def _load_data(self, train_dataset: Any, val_dataset: Any) -> None:
        data, trainer = self.config.data, self.config.trainer
        if train_dataset is None:
            train_dataset = self.build_dataset(data.train_files, data.train_max_samples)
        if val_dataset is None and data.val_files:
            val_dataset = self.build_dataset(data.val_files, data.val_max_samples)
        for dataset in (train_dataset, val_dataset):
            for _ in first_items(dataset) if dataset is not None else ():
                pass  # what is wrong with one is told as it is read
        self.train_dataset, self.val_dataset = train_dataset, val_dataset
        self.train_dataloader = self._loader(train_dataset, data.train_batch_size, train=True)
        self.val_dataloader = val_dataset and self._loader(
            val_dataset, data.val_batch_size or len(val_dataset), train=False
        )
        if trainer.total_training_steps is None:
            trainer.total_training_steps = len(self.train_dataloader) * trainer.total_epochs
        self.total_steps: int = trainer.total_training_steps

    def _loader(self, dataset: Any, batch_size: int, train: bool) -> Any:
        data = self.config.data
        assert data.seed is not None
        return build_dataloader(dataset, data, train=train, batch_size=batch_size, seed=data.seed)

    def init_workers(self) -> Self:
        """Start the worker groups and load the models."""
        self.worker_groups = start_worker_groups(
            self.config,
            self.role_worker_mapping,
            self.resource_pool_manager,
            self.ray_worker_group_cls,
            {role: {"module": module} for role, module in self.modules.items()},
        )
        load_models(self.worker_groups)
        self.model_wg = self.worker_groups[self.model_role]
        return self

    def shutdown(self) -> None:
        """End the worker groups and give their resources back; the models are gone with them."""
        self.tracking.finish()
        shut_down(self.worker_groups, self.resource_pool_manager)
        self.worker_groups = {}

    # ---- the loop ----

    def fit(self) -> dict[str, float]:
        """Run all steps. Returns the last validation's metrics (of the last step, when nothing validates)."""
        try:
            return self._fit()
        finally:
            self.tracking.finish()

    def _fit(self) -> dict[str, float]:
        trainer, final, validation = self.config.trainer, dict[str, float](), dict[str, float]()
        self._resume()
        if not trainer.val_only and all_done(self.global_step, self.total_steps):
            return final
        self.before_training()
        before = trainer.val_before_train and self.val_dataloader is not None and self.global_step == 0
        if before or trainer.val_only:
            final = self.validate()
            self.tracking.log(final, step=self.global_step)
        if trainer.val_only:
            return final

        bar = tqdm(total=self.total_steps, initial=self.global_step, desc="steps", unit="step")
        for rows in self._batches():
            metrics: dict[str, float] = {}
            timings: dict[str, float] = {}
            last = self.global_step == self.total_steps
            with self.phase("step", timings):
                batch = self.prepare(rows, "train", timings)
                with self.phase("update", timings, self.model_wg):
                    parts = self.model_wg.update(self._sent(batch, mini_batch_size=self.mini_batch_size()))
            metrics |= metric_values(merge_metrics(parts))
            metrics |= throughput_metrics(batch, timings["step"], self.model_wg.world_size)
            metrics |= metric_values(merge_metrics(self.model_wg.memory()))
            # A row that was cut before the answer begins teaches nothing.
            metrics["data/untrained_rows"] = float((batch.batch["response_mask"].flatten(1).sum(1) == 0).sum())

            if due(trainer.test_freq, self.global_step, last) and self.val_dataloader is not None:
                with self.phase("validate", timings, self.model_wg):
                    validation = self.validate()
                metrics |= validation
            if due(trainer.save_freq, self.global_step, last):
                with self.phase("save", timings, self.model_wg):
                    self._save()
            metrics |= {f"timing/{name}": seconds for name, seconds in timings.items()}
            self.tracking.log(metrics, step=self.global_step)
            bar.update()
            if "train/loss" in metrics:  # none of a batch in which every row was cut before the answer
                bar.set_postfix({"loss": f"{metrics['train/loss']:.3f}"})
            final = validation or metrics
        bar.close()
        tell_results(trainer, f"{self.model_role}/huggingface")
        return final

    def phase(self, name: str, timings: dict[str, float], group: Any = None) -> AbstractContextManager[None]:
        """A part of this step that `group`, or the driver itself, does: timed, logged, and shown by `who_waits`."""
        role = DRIVER if group is None else group.role
        return phase(name, timings, logger=logger, role=role, step=max(self.global_step - 1, 0))

    def _batches(self) -> Iterator[DataProto]:
        """Batches from where the loader stands, until the last step; counts the steps."""
        for rows in endless(self.train_dataloader):
            self.global_step += 1
            yield DataProto.from_single_dict(rows)
            if self.global_step >= self.total_steps:
                return

    def _sent(self, batch: DataProto, **meta: Any) -> DataProto:
        columns = tuple(key for key in map(str, batch.batch.keys()) if key != "index")
        return for_workers(batch, columns=columns, balance_batch=self.config.trainer.balance_batch, **meta)

    def validate(self) -> dict[str, float]:
        """`val/*` over all validation rows."""
        if self.val_dataloader is None:
            raise ValueError("there is no validation data: set data.val_files or give val_dataset")
        parts: list[Metrics] = []
        for rows in self.val_dataloader:
            batch = self.prepare(DataProto.from_single_dict(rows), "val", {})
            parts += self.model_wg.evaluate(self._sent(batch))
        return metric_values(merge_metrics(parts))

    # ---- checkpoints ----

    def _save(self) -> None:
        state = {"global_step": self.global_step}
        with self.checkpoints.saving(self.global_step, state, self.train_dataloader.state_dict()) as folder:
            self.model_wg.save_checkpoint(str(folder / self.model_role), save_hf=True)
            if self.tokenizer is not None:
                # Beside the weights, so that the folder is all that a later run needs.
                self.tokenizer.save_pretrained(folder / self.model_role / "huggingface")

    def _resume(self) -> None:
        folder = self.checkpoints.to_resume()
        if folder is None:
            return
        state, loader_state = self.checkpoints.read(folder)
        self.model_wg.load_checkpoint(str(folder / self.model_role))
        self.global_step = state["global_step"]
        self.checkpoints.restore(self.train_dataloader, loader_state, folder, self.global_step)


def run(trainer_cls: type[OfflineTrainer[Any]], config: OfflineConfig) -> dict[str, float]:
    """Build the trainer for a resolved config, train, and end what was started. Returns the final metrics."""
    # The trainer reads the data and tells its faults before Ray starts and models load.
    trainer = trainer_cls(config)
    path = trainer.model_config().path
    assert path is not None, "validate_offline() leaves no model without a path"
    check_model_folder(path)
    with running(trainer):
        return trainer.fit()
