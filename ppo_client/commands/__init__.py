"""What each `ppo` command does."""
