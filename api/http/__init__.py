"""REST: routes, problem+json, metrics. Must not import `api.rpc`."""
