"""Prompts and texts, and the place in them."""
