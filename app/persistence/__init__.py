"""Engines, tables, and mapping between rows and domain types."""
