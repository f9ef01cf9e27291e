"""Errors of the Opacus adapter."""

from typing import Final

from epsilon_ledger import LedgerError

NOT_STEPPED: Final = (
    "The last batch was not stepped, and the next one is fetched: then the data could decide which batches are "
    "charged. Step each batch once before the next one is fetched, empty ones too; do not skip, prefetch or accumulate "
    "batches (a BatchMemoryManager splits large ones). Evaluate on this loader under torch.no_grad(). To give a batch "
    "up, epsilon_ledger.opacus.discard_batch(optimizer) charges it without a step."
)
SECOND_ITERATION: Final = (
    "A second iteration over the training's loader fetches a batch, while the batch of the first one was not stepped. "
    "If it is an evaluation, run it under torch.no_grad(). If the first one was left, "
    "epsilon_ledger.opacus.discard_batch(optimizer) charges its batch without a step."
)


class UnsupportedTrainingError(LedgerError):
    """Opacus is set up for something of unknown cost: nothing was charged, release nothing."""
