"""Generated from proto/ppo/v1 and committed; never edited. The Makefile's `proto` makes it again."""
