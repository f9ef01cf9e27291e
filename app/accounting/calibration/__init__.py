"""Solving for a parameter of a plan, and reading what a plan costs on its way."""
