"""Map rows to domain types and back, inside the caller's transaction."""
