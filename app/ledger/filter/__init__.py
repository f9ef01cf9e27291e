"""Filters: which spent curves stay within a limit, at their orders and over disjoint parts."""
