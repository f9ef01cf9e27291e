"""NVIDIA FLARE: a site's result of a linear layer, with noise of the filter.

Without the adapter a filter of FLARE's own base class adds the same noise without a charge.
"""

from collections.abc import Iterator

import numpy as np
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from epsilon_ledger import Run
from epsilon_ledger.mechanisms import GaussianNoise, Unmetered
from epsilon_ledger.nvflare import LedgerFilter

NOISE = 100.0
UNMETERED = Unmetered("the overhead is measured")


class Charged(LedgerFilter):
    """A filter with the run of the benchmark."""

    def __init__(self, run: Run) -> None:
        super().__init__("p/b", NOISE, 1.0, unit="record")
        self._run = run


class Noisy(DXOFilter):
    """A filter that adds the noise alone."""

    def __init__(self) -> None:
        super().__init__([DataKind.WEIGHT_DIFF], None)
        self._noise = GaussianNoise(NOISE, clipping_norm=1.0)

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO:  # noqa: ARG002 - FLARE's signature
        """Add noise to the differences of weights."""
        rows = {name: values[np.newaxis] for name, values in dxo.data.items()}
        return DXO(DataKind.WEIGHT_DIFF, data=self._noise.clip_and_release(rows, run=UNMETERED))


def steps(run: Run | None) -> Iterator[None]:
    """Send results, and yield after each of them."""
    weights, context = np.zeros((64, 10), np.float32), FLContext()
    filter_ = Noisy() if run is None else Charged(run)
    while True:
        filter_.process(DXO(DataKind.WEIGHT_DIFF, data={"w": weights}).to_shareable(), context)
        yield
