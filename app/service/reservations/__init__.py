"""Hold plans for runs, and close them."""
