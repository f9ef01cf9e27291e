"""Rows to domain types and back; every function works inside the caller's transaction."""
