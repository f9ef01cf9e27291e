"""Use cases: each owns its transaction and commits before the response is sent."""
