"""Requests to the ledger other than steps, by resource, with the types of their responses."""
