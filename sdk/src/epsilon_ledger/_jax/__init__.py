"""Private parts of the JAX adapter."""
