"""How requests travel: where to, and how often they are tried."""
