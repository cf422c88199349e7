"""The front door: `http/` and `rpc/`, both thin over `jobs.service`, in one process and one event loop.

What both share is beside them. Knows jobs, FastAPI and grpc. Must not import the broker or torch.
"""
