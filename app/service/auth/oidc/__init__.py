"""People who sign in at an OpenID Connect provider: their tokens, the provider's keys, and who they are here."""
