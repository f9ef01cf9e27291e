"""What the Opacus adapter is made of."""
