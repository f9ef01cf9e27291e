"""NVIDIA FLARE: a site's result of a linear layer, with noise of the filter.

Without the adapter the same noise is drawn without a charge.
"""

from collections.abc import Iterator

import numpy as np
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_context import FLContext

from epsilon_ledger import Run
from epsilon_ledger.mechanisms import GaussianNoise, Unmetered
from epsilon_ledger.nvflare import LedgerFilter

NOISE = 100.0
UNMETERED = Unmetered("the overhead is measured")


class Charged(LedgerFilter):  # type: ignore[misc] - mypy does not read FLARE
    """A filter with the run of the benchmark."""

    def __init__(self, run: Run) -> None:
        super().__init__("p/b", NOISE, 1.0, unit="record")
        self._run = run


def steps(run: Run | None) -> Iterator[None]:
    """Send results, and yield after each of them."""
    weights, context = np.zeros((64, 10), np.float32), FLContext()
    filter_ = None if run is None else Charged(run)
    noise = GaussianNoise(NOISE, clipping_norm=1.0)
    while True:
        result = DXO(DataKind.WEIGHT_DIFF, data={"w": weights}).to_shareable()
        if filter_ is None:
            noisy = noise.clip_and_release(weights[np.newaxis], run=UNMETERED)
            DXO(DataKind.WEIGHT_DIFF, data={"w": noisy.astype(np.float32)}).to_shareable()
        else:
            filter_.process(result, context)
        yield
