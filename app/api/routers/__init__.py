"""One module a resource; each endpoint calls one use case."""
