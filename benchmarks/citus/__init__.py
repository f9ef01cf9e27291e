"""Build Citus, try the service on a cluster of it, and measure that."""
