"""Implementation of the Flower adapter."""
