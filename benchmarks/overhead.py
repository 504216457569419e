"""What share of a step the driver, dispatch and Ray take beside the workers' own compute.

    python benchmarks/overhead.py [--steps 10] [--hidden 256] [--layers 4]

A tiny random Llama, 64 sequences a step, actor, critic and reference. Two runs over the same data: everything in this
process, and one Ray worker process. The time that workers spend inside their methods is measured where they run; what
remains of the steps is overhead. The first step, which warms up, does not count.
"""

import argparse
import json
import sys
import tempfile
import time
from functools import wraps
from pathlib import Path
from typing import Any

from tiny import write_tiny_model

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from data.arithmetic import write_arithmetic  # noqa: E402

from verl.config.loader import load_config  # noqa: E402
from verl.models.loading import load_model_tokenizer  # noqa: E402
from verl.trainer import RayPPOTrainer  # noqa: E402
from verl.trainer.checks import checked
from verl.trainer.launch import running  # noqa: E402
from verl.trainer.roles import default_roles  # noqa: E402
from verl.worker import Dispatch, Worker, register  # noqa: E402

STEP_METHODS = (
    "generate_sequences",
    "compute_log_prob",
    "compute_ref_log_prob",
    "compute_values",
    "update_actor",
    "update_critic",
    "sync_weights",
    "memory",
)


def timed(worker_cls: type[Worker]) -> type[Worker]:
    """A subclass that notes the seconds of every call of a step's methods."""

    def measure(method: Any) -> Any:
        @wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return method(self, *args, **kwargs)
            finally:
                self.__dict__.setdefault("_seconds", {}).setdefault(method.__name__, []).append(
                    time.perf_counter() - start
                )

        return call

    @register(dispatch_mode=Dispatch.RANK_ZERO)
    def seconds(self: Any) -> dict[str, list[float]]:
        return self._seconds

    methods = {name: measure(getattr(worker_cls, name)) for name in STEP_METHODS if hasattr(worker_cls, name)}
    return type(f"Timed{worker_cls.__name__}", (worker_cls,), {**methods, "seconds": seconds})


def measure_run(folder: Path, kind: str, args: argparse.Namespace) -> tuple[float, float]:
    """(seconds of all steps but the first, seconds inside the workers' methods in these steps)."""
    train, test = write_arithmetic(folder / "data", template="{a}+{b} is what? answer: ")
    output = folder / kind
    config = checked(
        load_config(
            [
                f"actor_rollout_ref.model.path={folder / 'model'}",
                f"data.train_files={train}",
                f"data.val_files={test}",
                "data.train_batch_size=64",
                "data.max_prompt_length=32",
                "data.max_response_length=32",
                "actor_rollout_ref.actor.ppo_mini_batch_size=64",
                "actor_rollout_ref.actor.use_kl_loss=true",
                "actor_rollout_ref.rollout.ignore_eos=true",
                f"trainer.total_training_steps={args.steps + 1}",
                "trainer.val_before_train=false",
                "trainer.test_freq=-1",
                "trainer.resume_mode=disable",
                "trainer.logger=[file]",
                f"trainer.default_local_dir={output}",
                f"trainer.worker_group={kind}",
            ]
        )
    )
    roles = {role: timed(worker_cls) for role, worker_cls in default_roles(config).items()}
    tokenizer = load_model_tokenizer(config.actor_rollout_ref.model)
    trainer = RayPPOTrainer(config, tokenizer, roles)
    with running(trainer):
        for group in trainer.worker_groups.values():
            group.memory()  # so that every method's first call is one before the steps that count
        trainer.fit()
        calls = [group.seconds() for group in trainer.worker_groups.values()]
    steps = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()][1:]
    compute = sum(sum(seconds[-args.steps :]) for call in calls for name, seconds in call.items() if name != "memory")
    return sum(step["timing/step"] for step in steps), compute


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tiny_model(folder / "model", hidden=args.hidden, layers=args.layers)
        print(f"{'group':8} {'step':>10} {'in workers':>12} {'overhead':>10}")
        for kind in ("local", "ray"):
            total, compute = measure_run(folder, kind, args)
            share = (total - compute) / total
            print(f"{kind:8} {total / args.steps:>8.3f} s {compute / args.steps:>10.3f} s {share:>9.1%}")


if __name__ == "__main__":
    main()
