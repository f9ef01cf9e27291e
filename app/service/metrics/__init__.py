"""Counters and spans of this process."""
