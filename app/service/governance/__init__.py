"""What runs may do, what limits become, and whose word it takes."""
