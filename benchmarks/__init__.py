"""Figures that docs/performance.md keeps; each module is one command and prints one table."""
