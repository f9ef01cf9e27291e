"""Trainers of each framework, as processes that may be killed: `python -m tests.frameworks.trainers.NAME JSON`.

Each notes a release where the framework itself makes it: when the parameters have moved, or an aggregate is handed on.
"""
