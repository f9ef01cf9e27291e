"""API keys: creation, rotation, expiry, the first administrator's, and those of workloads."""
