"""Errors of the adapters of federated learning."""

from epsilon_ledger import LedgerError


class UnsupportedRoundError(LedgerError):
    """A round has an unknown cost: nothing was charged, release nothing."""
