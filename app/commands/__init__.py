"""Implementations of the commands that `app.cli` registers."""
