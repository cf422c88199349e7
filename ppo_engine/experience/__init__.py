"""Collecting experience: responses, their samples, and what the models say of them."""
