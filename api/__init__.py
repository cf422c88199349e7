"""The front door: `http` (FastAPI) and `rpc` (gRPC), both thin over `jobs.service`.

Must not import celery, redis or torch: it writes rows, and the worker's relay speaks to the broker.
"""
