"""What the Opacus adapter refuses."""

from epsilon_ledger import LedgerError


class UnsupportedTrainingError(LedgerError):
    """Opacus was set up to do something of which the cost is not known; nothing was charged, release nothing."""
