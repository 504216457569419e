"""PPO, GRPO and their kin as one driver loop over worker groups.

One step, as the data sees it (columns are listed in verl/protocol/schema.py):

    loader -> prompts, uid, seed                                        driver
      1 generate_sequences     responses, response_mask      <- actor_rollout
      2 reward_fn              token_level_scores            driver (+ compute_rm_score <- rm)
      3 compute_log_prob       old_log_probs, entropy        <- actor_rollout
        compute_ref_log_prob   ref_log_probs                 <- ref       (with a KL term)
        compute_values         values                        <- critic    (with a critic)
      4 penalize_kl            token_level_rewards           driver
        compute_advantage      advantages, returns           driver
      5 update_critic                                        -> critic
        update_actor           new weights                   -> actor_rollout (after critic_warmup)
        sync_weights           trainer -> rollout engine
      6 validate, save, log

With `trainer.device_map`, actor and rollout may be two roles, and roles on devices of their own do 2 and 3 at once.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from verl.algorithms.advantages import get_adv_estimator
from verl.algorithms.kl import make_kl_controller
from verl.algorithms.masked import masked_sum
from verl.config import PPOConfig
from verl.config.loader import to_dict
from verl.protocol import DataProto, align
from verl.rewards import RewardManager, load_reward_manager
from verl.trainer.callbacks import Callback, checked_callbacks
from verl.trainer.check_models import check_tokenizer
from verl.trainer.checkpoint import Checkpoints, all_done, tell_results
from verl.trainer.checks import check_single_rewards, check_writable, checked
from verl.trainer.launch import due, load_models, placement, shut_down, start_worker_groups
from verl.trainer.loaders import build_loaders, endless, total_steps
from verl.trainer.metrics import (
    batch_metrics,
    log_step,
    merge_reward_metrics,
    rollout_agreement,
    score_metrics,
    throughput_metrics,
)
from verl.trainer.online_preference import SEQUENCE, preference_rows, takes_samples
from verl.trainer.plan import announce
from verl.trainer.roles import Role, check_roles, needs_reference
from verl.trainer.samples import sample_rows, write_rows
from verl.trainer.scoring import scored
from verl.trainer.steps import (
    choose_tokens,
    compute_advantage,
    correct_rollout,
    for_workers,
    informative_groups,
    label_prompts,
    penalize_kl,
    shuffled,
    with_tensors,
)
from verl.trainer.weights import connect, sync
from verl.utils.activity import DRIVER
from verl.utils.events import phase
from verl.utils.metrics import merge_metrics, metric_values
from verl.utils.seeding import derive_seed
from verl.utils.tracking import Tracking
from verl.worker.preference import REFERENCE
from verl.workers import Task, run_together

logger = logging.getLogger("verl.trainer.ppo")


class RayPPOTrainer:
    """Trains a policy with reinforcement learning; the estimator and the losses are chosen by `config`.

    Args:
        config: the run; resolved and checked here, before any model loads (ValueError lists what is wrong).
        tokenizer: the policy's tokenizer.
        role_worker_mapping: role -> Worker subclass (plain or `ray.remote(cls)`). Roles of one's own are welcome:
            their groups are in `self.worker_groups`.
        resource_pool_manager: which pool each role lives on. Roles of one pool share processes. By default as
            `config.trainer` says.
        ray_worker_group_cls: RayWorkerGroup, or LocalWorkerGroup to run everything in this process; by default as
            `config.trainer` says.
        reward_fn, val_reward_fn: DataProto -> RewardResult; by default what `config.reward` describes.
        train_dataset, val_dataset: by default the files of `config.data`.
        collate_fn, train_sampler: of the training loader.
        modules: role -> nn.Module whose weights the role starts from, instead of its configured path.
        callbacks: called between steps, in this order.
    """

    def __init__(
        self,
        config: PPOConfig,
        tokenizer: Any,
        role_worker_mapping: dict[str, Any],
        resource_pool_manager: Any = None,
        ray_worker_group_cls: Any = None,
        reward_fn: Any = None,
        val_reward_fn: Any = None,
        train_dataset: Any = None,
        val_dataset: Any = None,
        collate_fn: Any = None,
        train_sampler: Any = None,
        modules: dict[str, torch.nn.Module] | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.modules = modules or {}
        policy = self.modules.get(Role.ActorRollout, self.modules.get(Role.Actor))
        given = {
            "data.train_files": train_dataset,
            "data.val_files": val_dataset,
            "actor_rollout_ref.model.path": policy,
            "critic.model.path": self.modules.get(Role.Critic),
            "reward.reward_model.model.path": self.modules.get(Role.RewardModel),
        }
        self.config = checked(config, given=[key for key, value in given.items() if value is not None])
        self.estimator = get_adv_estimator(self.config.algorithm.adv_estimator)
        self.tokenizer = tokenizer
        self.role_worker_mapping = {str(role): worker for role, worker in role_worker_mapping.items()}
        self.resource_pool_manager, self.ray_worker_group_cls = placement(
            self.config, self.role_worker_mapping, resource_pool_manager, ray_worker_group_cls
        )
        self.callbacks = checked_callbacks(callbacks)
        self.should_stop = False
        check_roles(self.config, self.role_worker_mapping)
        check_tokenizer(tokenizer, self.config, self.modules)

        self.reward_fn = reward_fn or load_reward_manager(
            self.config.reward, tokenizer, self.config.data.max_response_length
        )
        self.val_reward_fn = val_reward_fn or self.reward_fn
        check_single_rewards(self.config, self.reward_fn)
        # What is wrong with the data costs nothing now; at the first reward it would cost a rollout.
        by_rule = bool(self.config.reward.rule_weight)
        self.train_dataloader, self.val_dataloader = build_loaders(
            self.config,
            tokenizer,
            getattr(self.reward_fn, "required_columns", ()) if by_rule else (),
            train_dataset,
            val_dataset,
            collate_fn,
            train_sampler,
            self.reward_fn.check_row if by_rule and isinstance(self.reward_fn, RewardManager) else None,
        )
        self.total_steps = total_steps(self.config, self.train_dataloader)

        self.kl_controller = make_kl_controller(self.config.algorithm.kl_ctrl)
        self.worker_groups: dict[str, Any] = {}
        self.global_step = 0
        self.prompt_batches_drawn = 0
        trainer = self.config.trainer
        self.checkpoints = Checkpoints(Path(trainer.default_local_dir), trainer)
        self.checkpoints.check()
        for key in ("rollout_data_dir", "validation_data_dir"):
            check_writable(f"trainer.{key}", getattr(trainer, key))
        # Before any model loads: a tracker that cannot log in must say so now.
        self.tracking = Tracking(
            trainer.project_name,
            trainer.experiment_name,
            default_backend=trainer.logger,
            config=to_dict(self.config),
            directory=trainer.default_local_dir,
        )

    # ---- before the loop ----

    def init_workers(self) -> None:
        """Log the plan and check that it can be carried out, start the worker groups, and load the models.

        Raises ValueError for devices that do not exist and models that do not fit, RuntimeError when the cluster does
        not free the devices within trainer.placement_timeout_s.
        """
        announce(self.config, self.role_worker_mapping, self.modules, self.resource_pool_manager)
        self.worker_groups = start_worker_groups(
            self.config,
            self.role_worker_mapping,
            self.resource_pool_manager,
            self.ray_worker_group_cls,
            self._given(),
        )
        load_models(self.worker_groups)
        groups = self.worker_groups
        apart = Role.ActorRollout not in groups
        self.actor_rollout_wg = groups[Role.Actor if apart else Role.ActorRollout]
        self.rollout_wg = groups[Role.Rollout] if apart else self.actor_rollout_wg
        self.critic_wg = groups[Role.Critic] if self.config.critic.enable else None
        self.ref_wg = groups[Role.RefPolicy] if needs_reference(self.config) else None
        self.rm_wg = groups[Role.RewardModel] if self.config.reward.reward_model.enable else None
        self.weights_version = 0
        connect(self.actor_rollout_wg, self.rollout_wg, self.config.trainer.worker_timeout_s)

    def _given(self) -> dict[str, dict[str, Any]]:
        """What roles get that no config can say: modules, and the tokenizer of a policy without a folder."""
        given: dict[str, dict[str, Any]] = {role: {"module": module} for role, module in self.modules.items()}
        policy = self.config.actor_rollout_ref.model
        if Role.RewardModel in self.role_worker_mapping and policy.path is policy.tokenizer_path is None:
            given.setdefault(Role.RewardModel, {})["policy_tokenizer"] = self.tokenizer
        return given

    def shutdown(self) -> None:
        """End the worker groups and give their resources back; the models are gone with them. So are the processes that
        score; they start again when needed."""
        self.tracking.finish()
        shut_down(self.worker_groups, self.resource_pool_manager)
        for reward in (self.reward_fn, self.val_reward_fn):
            if isinstance(reward, RewardManager):
                reward.close()
        self.worker_groups = {}

    # ---- the loop ----

    def fit(self) -> dict[str, float]:
        """Run all steps. Returns the last validation's metrics (of the last step, when nothing validates)."""
        try:
            return self._fit()
        finally:
            self.tracking.finish()

    def _fit(self) -> dict[str, float]:
        config, tracking = self.config, self.tracking
        final: dict[str, float] = {}
        self._resume()
        for callback in self.callbacks:
            callback.on_train_begin(self)
        before = config.trainer.val_before_train and self.val_dataloader is not None and self.global_step == 0
        if before or config.trainer.val_only:
            final = self._validate()
            tracking.log(final, step=self.global_step)
        if config.trainer.val_only:
            return final
        if all_done(self.global_step, self.total_steps):
            return final

        validation: dict[str, float] = {}
        bar = tqdm(total=self.total_steps, initial=self.global_step, desc="steps", unit="step")
        prompts = self._prompt_batches()
        while self.global_step < self.total_steps and not self.should_stop:
            self.global_step += 1
            metrics: dict[str, float] = {}
            timings: dict[str, float] = {}
            with self._phase("step", timings):
                batch = self._sample(prompts, timings, metrics)
                if config.algorithm.preference.loss is None:
                    batch = self._evaluate(batch, timings, metrics)
                    self._update(batch, timings, metrics)
                else:
                    self._learn_preferences(batch, timings, metrics)
            if config.trainer.rollout_data_dir:
                rows = sample_rows(batch, self.tokenizer)
                write_rows(config.trainer.rollout_data_dir, self.global_step, rows, config.trainer.dump_format)
            processes = sum(group.world_size for group in self._groups_apart())
            metrics |= throughput_metrics(batch, timings["step"], processes)
            metrics |= metric_values(merge_metrics([part for group in self._groups() for part in group.memory()]))

            log_step(self.global_step - 1, batch, config.algorithm, timings, metrics)
            for callback in self.callbacks:
                callback.on_step_end(self, self.global_step, batch, metrics)

            # 6. validate, save, log
            last = self.global_step == self.total_steps or self.should_stop
            if due(config.trainer.test_freq, self.global_step, last) and self.val_dataloader is not None:
                with self._phase("validate", timings, self.rollout_wg):
                    validation = self._validate()
                metrics |= validation
            last |= self.should_stop  # as a callback may have decided on seeing the validation
            if due(config.trainer.save_freq, self.global_step, last):
                with self._phase("save", timings):
                    self._save()
            metrics |= {f"timing/{name}": seconds for name, seconds in timings.items()}
            tracking.log(metrics, step=self.global_step)
            bar.update()
            if "reward/score_mean" in metrics:  # none of a batch in which every row is excluded
                bar.set_postfix({"reward": f"{metrics['reward/score_mean']:.3f}"})
            final = validation or metrics
        bar.close()
        tell_results(config.trainer, "actor/huggingface")
        for callback in self.callbacks:
            callback.on_train_end(self, final)
        return final

    def _sample(self, prompts: Iterator[DataProto], timings: dict[str, float], metrics: dict[str, float]) -> DataProto:
        """Steps 1 and 2: a batch of scored responses; with filter_groups, only prompts that have something to teach.

        The scores are still to come when they can be computed beside the log-probs of step 3.
        """
        algorithm, size = self.config.algorithm, self.config.data.train_batch_size
        filters = algorithm.filter_groups
        needs_scores = filters.enable or self.estimator.needs_greedy_baseline or algorithm.preference.loss is not None
        if not needs_scores and (self.config.reward.launch_async or len(self._groups_apart()) > 1):
            return self._respond(next(prompts), timings)
        if not filters.enable:
            batch, reward_metrics = self._generate(next(prompts), timings)
            metrics |= reward_metrics
            return batch
        kept: list[DataProto] = []
        parts: list[dict[str, float]] = []
        tried = found = 0
        while found < size:
            if filters.max_num_gen_batches and len(kept) == filters.max_num_gen_batches:
                raise ValueError(
                    f"algorithm.filter_groups: of {tried} prompts in {len(kept)} batches only {found} had samples that "
                    f"differ in {filters.metric!r}, and a step needs {size}: make the data easier or harder, raise "
                    "actor_rollout_ref.rollout.n, or raise algorithm.filter_groups.max_num_gen_batches"
                )
            batch, reward_metrics = self._generate(next(prompts), timings)
            parts.append(reward_metrics)
            kept.append(informative_groups(batch, filters.metric))
            tried += len(set(batch.non_tensor_batch["uid"]))
            found += len(set(kept[-1].non_tensor_batch["uid"]))
        metrics |= merge_reward_metrics(parts)
        metrics |= {"filter_groups/tried_prompts": float(tried), "filter_groups/kept_prompts": float(found)}
        return DataProto.concat(align(kept))[: size * self.config.actor_rollout_ref.rollout.n]

    def _respond(self, prompts: DataProto, timings: dict[str, float]) -> DataProto:
        with self._phase("gen", timings, self.rollout_wg):
            output = self.rollout_wg.generate_sequences(self._generation_batch(prompts, "train"))
        return _without_prompt_columns(prompts).union(output)

    def _generate(self, prompts: DataProto, timings: dict[str, float]) -> tuple[DataProto, dict[str, float]]:
        # 1. responses
        batch = self._respond(prompts, timings)
        # 2. scores
        with self._phase("reward", timings):
            batch, metrics = self.score(batch)
        self._check_scored(batch)
        if self.estimator.needs_greedy_baseline and self.config.algorithm.preference.loss is None:
            with self._phase("gen_baseline", timings, self.rollout_wg):
                batch, baseline_metrics = self._with_baseline(batch, prompts)
            metrics |= baseline_metrics
        return batch, metrics

    def _with_baseline(self, batch: DataProto, prompts: DataProto) -> tuple[DataProto, dict[str, float]]:
        """Add `baseline_scores` [B]: the score of the prompt's most likely response, generated once for a prompt.

        Where that response is excluded there is nothing to compare with, so the prompt's samples train nothing either.
        """
        n = self.config.actor_rollout_ref.rollout.n
        once = prompts[::n]
        output = self.rollout_wg.generate_sequences(self._generation_batch(once, "greedy"))
        greedy, _ = self.score(_without_prompt_columns(once).union(output))
        has_baseline = greedy.batch["response_mask"].bool().any(-1).repeat_interleave(n)
        batch = with_tensors(
            batch,
            baseline_scores=greedy.batch["token_level_scores"].sum(-1).repeat_interleave(n),
            response_mask=batch.batch["response_mask"] * has_baseline[:, None],
        )
        return batch, {} if has_baseline.all() else {"reward/without_baseline": float((~has_baseline).sum())}

    def _evaluate(self, batch: DataProto, timings: dict[str, float], metrics: dict[str, float]) -> DataProto:
        config, actor, ref, critic = self.config, self.actor_rollout_wg, self.ref_wg, self.critic_wg
        bypass = config.algorithm.rollout_correction.bypass_mode
        sent = for_workers(batch, balance_batch=config.trainer.balance_batch)

        def task(name: str, run: Callable[[], Any], group: Any = None) -> Task:
            def in_phase() -> Any:
                with self._phase(name, timings, group):
                    return run()

            return Task(name, in_phase, group)

        # 3. log-probs and values under the weights as they are; groups on devices of their own work at the same time
        tasks: list[Task] = []
        if not bypass:
            tasks.append(task("old_log_prob", lambda: actor.compute_log_prob(sent), actor))
        if ref is not None:
            tasks.append(task("ref_log_prob", lambda: ref.compute_ref_log_prob(sent), ref))
        if critic is not None:
            tasks.append(task("values", lambda: critic.compute_values(sent), critic))
        # 2. scores, unless they are there already
        has_scores = "token_level_scores" in batch.batch.keys()  # noqa: SIM118
        if not has_scores:
            tasks.append(task("reward", lambda: self.score(batch)))
        with self._phase("evaluate", timings):
            outputs = run_together(tasks, config.trainer.worker_timeout_s)
        if not has_scores:
            batch, reward_metrics = outputs.pop()
            self._check_scored(batch)
            metrics |= reward_metrics
        for output in outputs:
            batch = batch.union(output)
        if bypass:
            batch = with_tensors(batch, old_log_probs=batch.batch["rollout_log_probs"])
        else:
            metrics |= rollout_agreement(batch, config.actor_rollout_ref.rollout.max_logprob_diff)
        # 4. rewards and advantages
        with self._phase("adv", timings):
            batch = self._apply_kl(batch, metrics)
            batch, advantage_metrics = compute_advantage(batch, config.algorithm)
        metrics |= advantage_metrics
        metrics |= batch_metrics(batch, config.data.max_response_length)
        return batch

    def _update(self, batch: DataProto, timings: dict[str, float], metrics: dict[str, float]) -> None:
        # 5. train, and bring the new weights to the rollout engine
        config, n = self.config, self.config.actor_rollout_ref.rollout.n
        balance = config.trainer.balance_batch
        seed = derive_seed(config.trainer.seed, "shuffle", self.global_step)
        if self.critic_wg is not None:
            assert config.critic.ppo_mini_batch_size is not None
            rows = shuffled(batch, seed) if config.critic.shuffle else batch
            mini_batch_size = config.critic.ppo_mini_batch_size * n
            sent = for_workers(rows, "values", "returns", mini_batch_size=mini_batch_size, balance_batch=balance)
            with self._phase("update_critic", timings, self.critic_wg):
                parts = self.critic_wg.update_critic(sent)
            metrics |= metric_values(merge_metrics(parts))
        if self.global_step <= config.trainer.critic_warmup:
            return
        actor = config.actor_rollout_ref.actor
        batch, correction_metrics = correct_rollout(batch, config.algorithm.rollout_correction)
        metrics |= correction_metrics
        batch = choose_tokens(batch, actor, seed)
        rows = shuffled(batch, seed) if actor.shuffle else batch
        optional = [name for name in ("ref_log_probs", "rollout_weights", "selected") if name in rows.batch.keys()]  # noqa: SIM118
        mini_batch_size = actor.ppo_mini_batch_size * n
        sent = for_workers(
            rows, "old_log_probs", "advantages", *optional, mini_batch_size=mini_batch_size, balance_batch=balance
        )
        with self._phase("update_actor", timings, self.actor_rollout_wg):
            parts = self.actor_rollout_wg.update_actor(sent)
            self.weights_version += 1
        metrics |= metric_values(merge_metrics(parts))
        self._sync(timings, metrics)

    def _learn_preferences(self, batch: DataProto, timings: dict[str, float], metrics: dict[str, float]) -> None:
        """Steps 3 to 5 of algorithm.preference: rank the samples of each prompt, and learn from the ranking."""
        config = self.config
        loss, size = config.algorithm.preference.loss, config.actor_rollout_ref.actor.ppo_mini_batch_size
        assert loss is not None
        if takes_samples(loss):  # ppo_mini_batch_size counts prompts
            size *= config.actor_rollout_ref.rollout.n
        metrics |= batch_metrics(batch, config.data.max_response_length)
        rows, balance = preference_rows(batch, loss, size), config.trainer.balance_batch
        metrics["preference/rows"] = float(len(rows))
        if not len(rows):
            logger.warning("step %d: no prompt has samples that differ in score: nothing to learn", self.global_step)
            return
        if self.ref_wg is not None:
            with self._phase("ref_log_prob", timings, self.ref_wg):
                output = self.ref_wg.compute_ref_log_prob(for_workers(rows, columns=SEQUENCE, balance_batch=balance))
            reference = masked_sum(output.batch["ref_log_probs"], rows.batch["response_mask"], dim=-1)
            rows = with_tensors(rows, **{REFERENCE: reference})
        with self._phase("update_actor", timings, self.actor_rollout_wg):
            columns = tuple(map(str, rows.batch.keys()))
            sent = for_workers(rows, columns=columns, mini_batch_size=size, balance_batch=balance)
            parts = self.actor_rollout_wg.update_preference(sent)
            self.weights_version += 1
        metrics |= metric_values(merge_metrics(parts))
        self._sync(timings, metrics)

    # ---- parts of a step ----

    def _phase(self, name: str, timings: dict[str, float], group: Any = None) -> AbstractContextManager[None]:
        """A part of the step that `group` (None: the driver) works on, with its seconds in `timings` and in the log."""
        role = DRIVER if group is None else group.role
        return phase(name, timings, logger=logger, role=role, step=self.global_step - 1)

    def _sync(self, timings: dict[str, float], metrics: dict[str, float]) -> None:
        """Bring the actor's new weights to the rollout."""
        with self._phase("sync", timings, self.actor_rollout_wg):
            parts = sync(self.actor_rollout_wg, self.rollout_wg, self.config.trainer.worker_timeout_s)
        metrics |= metric_values(merge_metrics(parts))

    def _groups(self) -> list[Any]:
        """The groups of the roles that the trainer knows."""
        groups = (self.actor_rollout_wg, self.rollout_wg, self.critic_wg, self.ref_wg, self.rm_wg)
        return list({id(group): group for group in groups if group is not None}.values())

    def _groups_apart(self) -> list[Any]:
        """One of these groups for each set of processes."""
        return list({id(group.processes): group for group in self._groups()}.values())

    def _prompt_batches(self) -> Iterator[DataProto]:
        """Batches of prompts from where the loader stands, epoch after epoch, without end."""
        n, seed = self.config.actor_rollout_ref.rollout.n, self.config.trainer.seed
        for rows in endless(self.train_dataloader):
            self.prompt_batches_drawn += 1
            yield label_prompts(DataProto.from_single_dict(rows), self.prompt_batches_drawn, n, seed)

    def _generation_batch(self, prompts: DataProto, sampling: str) -> DataProto:
        return for_workers(
            prompts,
            columns=("input_ids", "attention_mask", "position_ids", "seed"),
            sampling=sampling,
            weights_version=self.weights_version,
            eos_token_ids=[] if self.tokenizer.eos_token_id is None else [self.tokenizer.eos_token_id],
            pad_token_id=self.tokenizer.pad_token_id,
        )

    def score(self, batch: DataProto, validate: bool = False) -> tuple[DataProto, dict[str, float]]:
        """Add `token_level_scores`, and what belongs to them; see `verl.trainer.scoring.scored`."""
        return scored(
            batch,
            self.config.reward,
            self.val_reward_fn if validate else self.reward_fn,
            self.rm_wg,
            single_rewards=self.estimator.needs_reward_components,
        )

    def _check_scored(self, batch: DataProto) -> None:
        """ValueError when no row is left to train on."""
        if not batch.batch["response_mask"].any():
            raise ValueError(
                f"the reward function gave no valid score to any of the {len(batch)} rows of step {self.global_step}; "
                "reward.on_invalid=exclude leaves nothing to train on"
            )

    def _apply_kl(self, batch: DataProto, metrics: dict[str, float]) -> DataProto:
        algorithm = self.config.algorithm
        if not algorithm.use_kl_in_reward:
            return batch.union(DataProto.from_dict({"token_level_rewards": batch.batch["token_level_scores"]}))
        coef = self.kl_controller.value
        batch, kl = penalize_kl(batch, coef, algorithm.kl_penalty)
        self.kl_controller.update(current_kl=kl, n_steps=len(batch))
        metrics["kl/reward_kl_per_response"] = kl
        metrics["kl/coef"] = coef
        return batch

    def _validate(self) -> dict[str, float]:
        """Greedy (or as val_kwargs says) answers to all validation prompts, scored; metrics by data source."""
        if self.val_dataloader is None:
            raise ValueError("there is no validation data: set data.val_files or give val_dataset")
        n, seed = self.config.actor_rollout_ref.rollout.val_kwargs.n, self.config.trainer.seed
        batches: list[DataProto] = []
        samples: list[dict[str, Any]] = []
        trainer = self.config.trainer
        for number, rows in enumerate(self.val_dataloader):
            prompts = label_prompts(DataProto.from_single_dict(rows), number, n, derive_seed(seed, "validation"))
            output = self.rollout_wg.generate_sequences(self._generation_batch(prompts, "validate"))
            batch, _ = self.score(_without_prompt_columns(prompts).union(output), validate=True)
            batches.append(batch)
            missing = max(trainer.log_val_generations - len(samples), 0)
            samples += sample_rows(batch, self.tokenizer, None if trainer.validation_data_dir else missing)
        if trainer.validation_data_dir:
            write_rows(trainer.validation_data_dir, self.global_step, samples, trainer.dump_format)
        self.tracking.log_table("val/samples", samples[: trainer.log_val_generations], step=self.global_step)
        metrics = score_metrics(batches)
        for callback in self.callbacks:
            callback.on_validation_end(self, self.global_step, metrics)
        return metrics

    # ---- checkpoints ----

    def _save(self) -> None:
        state = {
            "global_step": self.global_step,
            "prompt_batches_drawn": self.prompt_batches_drawn,
            "kl_controller": self.kl_controller.state_dict(),
        }
        with self.checkpoints.saving(self.global_step, state, self.train_dataloader.state_dict()) as folder:
            self.actor_rollout_wg.save_checkpoint(str(folder / "actor"), save_hf=True)
            # Beside the weights, so that the folder is all that a later run needs.
            self.tokenizer.save_pretrained(folder / "actor" / "huggingface")
            if self.critic_wg is not None:
                self.critic_wg.save_checkpoint(str(folder / "critic"))
        for callback in self.callbacks:
            callback.on_save(self, self.global_step, folder)

    def _resume(self) -> None:
        folder = self.checkpoints.to_resume()
        if folder is None:
            return
        state, loader_state = self.checkpoints.read(folder)
        self.actor_rollout_wg.load_checkpoint(str(folder / "actor"))
        if self.critic_wg is not None:
            self.critic_wg.load_checkpoint(str(folder / "critic"))
        if self.rollout_wg is not self.actor_rollout_wg:
            sync(self.actor_rollout_wg, self.rollout_wg, self.config.trainer.worker_timeout_s)
        self.kl_controller.load_state_dict(state["kl_controller"])
        self.global_step = state["global_step"]
        self.prompt_batches_drawn = state["prompt_batches_drawn"]
        self.checkpoints.restore(self.train_dataloader, loader_state, folder, self.global_step)


def _without_prompt_columns(prompts: DataProto) -> DataProto:
    """The rows without what generation returns in full width."""
    replaced = {"input_ids", "attention_mask", "position_ids", "seed"}
    return prompts.select(batch_keys=[key for key in map(str, prompts.batch.keys()) if key not in replaced])
