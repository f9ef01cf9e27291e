"""Requests to others' servers: receivers of alerts, identity providers, the mail server; all with the same bounds."""
