"""Periodic jobs, and copies of a ledger."""
