"""A look at a run before it starts: everything that can be known without loading its weights."""
