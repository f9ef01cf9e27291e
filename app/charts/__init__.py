"""Charts as plain data, for scripts, tables and images."""
