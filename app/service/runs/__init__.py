"""Register runs and change their state."""
