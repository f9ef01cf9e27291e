"""Scheduling: the order of plans that wait, and what they wait for."""
