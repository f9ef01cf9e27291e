"""Stateless planning: costs of a plan, and parameters that fit a limit."""
