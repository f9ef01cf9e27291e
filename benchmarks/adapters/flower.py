"""Flower: a round of ten clients within this process, aggregated by Flower's wrapper with central noise.

Without the adapter the wrapper aggregates itself; with it, clipping, sum and noise are the ledger client's. So the
overhead is that of the whole aggregation, of which the question is a part.
"""

from collections.abc import Iterator
from logging import ERROR, getLogger

import numpy as np
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from epsilon_ledger import Run
from epsilon_ledger.flower import charge_rounds
from tests.frameworks.flower_grid import LocalGrid, arrays, shifted_by

CLIENTS, NOISE = 10, 100.0


def steps(run: Run | None) -> Iterator[None]:
    """Aggregate, and yield after each round."""
    getLogger("flwr").setLevel(ERROR)
    strategy = DifferentialPrivacyServerSideFixedClipping(FedAvg(), NOISE, 1.0, CLIENTS)
    if run is not None:
        strategy = charge_rounds(strategy, run, unit="client")
    grid, start, number = LocalGrid(shifted_by(lambda _: 0.01), CLIENTS), arrays(np.zeros((64, 10))), 0
    while True:
        number += 1
        messages = strategy.configure_train(number, start, ConfigRecord(), grid)
        strategy.aggregate_train(number, grid.send_and_receive(messages))
        grid.asked.clear()
        yield
