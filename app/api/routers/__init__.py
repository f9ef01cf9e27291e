"""One module for each resource; each endpoint calls one use case."""
