"""Does each algorithm learn? The sums of examples/ppo_trainer.py, from the same start, with several seeds.

    python benchmarks/learning.py [--algorithms ppo grpo ...] [--seeds 1 2] [--steps 8] [key=value ...]

Prints a Markdown table: greedy validation accuracy before, and after the last step for each seed. Every run sees
64 samples a step, as 64 prompts or as 16 prompts with 4 samples each.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "ppo_trainer.py"

GROUPS = [
    "data.train_batch_size=16",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
]
ALGORITHMS = {
    "ppo": ["algorithm.name=ppo"],
    "grpo": ["algorithm.name=grpo", *GROUPS],
    "rloo": ["algorithm.name=rloo", *GROUPS],
    "reinforce_plus_plus": ["algorithm.name=reinforce_plus_plus"],
    "dapo": ["algorithm.name=dapo", *GROUPS],
    "gspo": ["algorithm.name=gspo", *GROUPS],
    "dpo": ["algorithm.name=dpo", *GROUPS],
}


def accuracies(overrides: list[str]) -> list[float]:
    """The validation accuracies of one run, in order."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(EXAMPLE), *overrides, f"trainer.default_local_dir={folder}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
        records = map(json.loads, (Path(folder) / "metrics.jsonl").read_text().splitlines())
        return [value for record in records for key, value in record.items() if key.startswith("val/")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="for all runs")
    args = parser.parse_args()
    print(f"| algorithm | before | {' | '.join(f'seed {seed}' for seed in args.seeds)} | minutes a run |")
    print("|---" * (3 + len(args.seeds)) + "|")
    for name in args.algorithms:
        started = time.perf_counter()
        runs = [
            accuracies(
                [
                    *ALGORITHMS[name],
                    f"trainer.seed={seed}",
                    f"trainer.total_training_steps={args.steps}",
                    "trainer.test_freq=0",
                    *args.overrides,
                ]
            )
            for seed in args.seeds
        ]
        minutes = (time.perf_counter() - started) / 60 / len(args.seeds)
        after = " | ".join(f"{run[-1]:.1%}" for run in runs)
        print(f"| {name} | {runs[0][0]:.1%} | {after} | {minutes:.1f} |", flush=True)


if __name__ == "__main__":
    main()
