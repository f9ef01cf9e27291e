"""Accounts: what they have spent and hold, what describes them, and their alerts."""
