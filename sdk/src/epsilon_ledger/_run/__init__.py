"""A run, as its trainer holds it: asking, granting, and what is done with the answers."""
