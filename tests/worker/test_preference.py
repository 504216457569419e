"""What the policy is trained with."""

from verl.config import PPOConfig
from verl.config.validate import resolve
from verl.worker.preference import policy_settings


def test_the_rate_falls_over_the_steps_that_the_policy_is_trained_in() -> None:
    """10 steps of 8 prompts in mini-batches of 4, twice each: 40; the first 3 of them are the critic's alone."""
    config = PPOConfig()
    config.data.train_batch_size, config.actor_rollout_ref.actor.ppo_mini_batch_size = 8, 4
    config.actor_rollout_ref.actor.ppo_epochs = 2
    config.trainer.total_training_steps, config.trainer.critic_warmup = 10, 3
    assert policy_settings(resolve(config, needs_critic=False)).optimizer_steps == 40
    assert policy_settings(resolve(config, needs_critic=True)).optimizer_steps == 28
