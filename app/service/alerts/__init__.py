"""Alerts: written in the transaction of their cause, delivered to receivers until acknowledged."""
