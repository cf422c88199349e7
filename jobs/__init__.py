"""The shared domain: the job's spec, its states, its rows and the use cases of the front door and the worker.

Knows pydantic, SQLAlchemy and the engine's face. Must not import a transport (fastapi, grpc), the broker or torch.
"""
