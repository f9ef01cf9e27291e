"""A real DP-SGD training that is stopped at its budget, for people to watch."""
