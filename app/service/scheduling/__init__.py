"""Scheduling: reservations that wait for budget are granted in the order of a rule (ADR 0041)."""
