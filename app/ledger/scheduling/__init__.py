"""Scheduling: the order of reservations that wait, and what they wait for."""
