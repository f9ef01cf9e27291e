"""Errors of the Opacus adapter."""

from epsilon_ledger import LedgerError


class UnsupportedTrainingError(LedgerError):
    """Opacus is set up for something of unknown cost: nothing was charged, release nothing."""
