"""Benchmarks of docs/operations/performance.md; each module is a command that prints a table."""
