"""Figures that docs/operations/performance.md keeps; each module is one command and prints one table."""
