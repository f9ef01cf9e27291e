"""Verification: every account recomputed from its charges, and every chain checked."""
