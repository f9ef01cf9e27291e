"""Open populations and budgets, and find them."""
