"""Implementation of a run on the trainer's side."""
