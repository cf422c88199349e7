"""The worker: a Celery app whose tasks each supervise one engine process; relay, reaper and worker gauges.

Knows the domain and the engine's face. Must not import torch, fastapi or grpc.
"""
