"""Schemas of requests, which are strict, and responses, which are complete."""
