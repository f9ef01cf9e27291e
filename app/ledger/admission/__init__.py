"""Admission: whether steps fit into every account of a path, by the rule or by counting."""
