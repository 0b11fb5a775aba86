"""RPCs: handlers that gRPC calls, RPCs that are open, and errors as statuses."""
