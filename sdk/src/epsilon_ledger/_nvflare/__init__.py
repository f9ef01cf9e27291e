"""Implementation of the adapter of NVIDIA FLARE."""
