"""Rounds of federated learning: what the adapters of Flower and NVIDIA FLARE share."""
