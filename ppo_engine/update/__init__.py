"""The PPO update: from a rollout batch to optimizer steps."""
