"""A model of how much the service needs: `python -m benchmarks.sizing [--write]` (seconds, no server)."""
