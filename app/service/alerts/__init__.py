"""Alerts: written with their cause, sent to webhooks until they are acknowledged."""
