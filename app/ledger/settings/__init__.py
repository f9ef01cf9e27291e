"""What is set on an account besides its limit: policies, allocation and windows."""
