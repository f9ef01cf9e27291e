"""The hot path: decide step commands in groups, one transaction per group."""
