"""A real DP-SGD training that stops at its budget."""
