"""gRPC: servicer, interceptors, conversion. Must not import `api.http`."""
