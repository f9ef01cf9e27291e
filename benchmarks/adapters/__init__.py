"""Overhead of each adapter for a training step: `python -m benchmarks.adapters [NAME ...]`.

The same small training step runs without the adapter, and with it and grants of 50, requested in the background: step
by step in turn, on one thread. The overhead is the median of the differences of two neighbouring steps. A module beside
this one has the steps of a framework: `steps(run)` yields after each of them, and charges `run` unless that is None.
"""
