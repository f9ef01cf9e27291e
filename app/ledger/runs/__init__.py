"""Runs: their status and deviations, their reservations, and the decisions on their steps."""
