"""MindArmour's names: a linear model, one private step of all records, so that all steps are of one size."""

from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from epsilon_ledger import Run
from epsilon_ledger.mechanisms import Unmetered
from epsilon_ledger.mindarmour import SGD, DPModel, NoiseMechanismsFactory

RECORDS, NOISE = 10, 100.0


class Line:
    """A linear model whose loss is its mean output."""

    def gradients(self, data: NDArray[Any], label: NDArray[Any]) -> list[NDArray[Any]]:
        """Return the gradient."""
        return [(data * label[:, np.newaxis]).mean(axis=0)]


class Free(Unmetered):
    """A run that charges nothing."""

    id = "free"
    next_step = step = 0
    expected_steps: int | None = None
    state = SimpleNamespace(neighboring_relation="replace_one")


def steps(run: Run | None) -> Iterator[None]:
    """Train, and yield after each step."""
    weights = np.zeros(64)
    model = DPModel(
        RECORDS,
        1.0,
        NoiseMechanismsFactory.create("Gaussian", 1.0, NOISE),
        optimizer=SGD([weights], 0.1),
        network=Line(),
        batch_size=RECORDS,
        run=cast("Run", Free("measured without a ledger")) if run is None else run,
    )
    data = np.random.default_rng(0).normal(size=(RECORDS, 64)), np.ones(RECORDS)
    for _ in count():
        for _ in model.steps(1, data):
            yield
