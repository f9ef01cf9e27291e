"""MindArmour's names over the client's own mechanisms."""
