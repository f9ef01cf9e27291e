"""Failover of the files under deploy/high-availability, under load: `python -m benchmarks.failover`."""
