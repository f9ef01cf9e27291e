"""Use cases: each owns its transaction, and commits before the reply is sent."""
