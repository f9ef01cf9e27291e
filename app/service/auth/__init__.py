"""Authenticate callers, authorize them and limit their rate."""
