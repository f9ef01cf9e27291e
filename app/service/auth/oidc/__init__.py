"""Authenticate people by an OpenID Connect provider."""
