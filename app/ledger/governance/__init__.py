"""Governance: what policies allow, proposals, and changes of limits."""
