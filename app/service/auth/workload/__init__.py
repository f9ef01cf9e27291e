"""Identities of workloads: jobs that show a token of their cluster or CI instead of a key."""
