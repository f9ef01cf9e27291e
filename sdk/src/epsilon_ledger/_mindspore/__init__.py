"""Implementation of the MindSpore adapter."""
