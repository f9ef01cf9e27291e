"""HTML pages of the service."""
