"""Rows of datasets as they lie on disk: files, folders, and datasets of the hub. Torch-free."""
