"""Calibrate plan parameters, and compute the privacy cost along a plan."""
