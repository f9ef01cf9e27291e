"""Errors of the JAX and Keras adapters."""

from epsilon_ledger import LedgerError


class UnsupportedTrainingError(LedgerError):
    """A training is set up for something of unknown cost: nothing was charged, release nothing."""
