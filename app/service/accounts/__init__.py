"""Create and look up populations and budgets."""
