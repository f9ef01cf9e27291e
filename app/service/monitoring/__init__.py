"""Monitoring: metrics, readiness and integrity checks."""
