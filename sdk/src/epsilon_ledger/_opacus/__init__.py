"""Implementation of the Opacus adapter."""
