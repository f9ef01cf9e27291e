"""Alerts: written in the transaction of their cause, delivered to webhooks until acknowledged."""
