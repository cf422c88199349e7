"""The engine as a program: the loop around the trainer, and what it writes."""
