"""What was done and spent, told so that others can check it."""
