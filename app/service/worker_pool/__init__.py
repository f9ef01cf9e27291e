"""Calculations that take a processor for up to a second: in processes of their own, in fair turn."""
