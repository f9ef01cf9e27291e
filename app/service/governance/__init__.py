"""Govern runs, limits, policies and API keys."""
