"""Snapshots of the answers that users see most, and of the rows of a small story."""
