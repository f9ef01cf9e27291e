"""A small model whose steps can be watched."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from epsilon_ledger.mechanisms import (
    AdaptiveClipping,
    DpAdam,
    DpMomentum,
    DpOptimizer,
    DpSgd,
    GaussianNoise,
    PoissonSampler,
    Unmetered,
)
from epsilon_ledger.mechanisms.arrays import Arrays
from epsilon_ledger.mechanisms.releases import Authorizer

Floats = NDArray[np.float64]
Optimizer = DpOptimizer[NDArray[np.intp]]
Rule = Callable[..., Optimizer]

UNMETERED = Unmetered("a test")
RULES = [DpSgd, DpMomentum, DpAdam]
RECORDS, Q = 40, 0.25


def optimizer(
    rule: Rule = DpSgd,
    params: Arrays | None = None,
    *,
    run: Authorizer = UNMETERED,
    adaptive: bool = False,
    seed: int | None = 1,
    q: float = Q,
) -> Optimizer:
    sampler = PoissonSampler(RECORDS, q, insecure_seed=seed)
    noise = GaussianNoise(2.0, clipping_norm=0.5, decay_mode="exp", decay_rate=0.1, insecure_seed=seed)
    mechanism = AdaptiveClipping(noise, expected_summands=sampler.expected_summands) if adaptive else noise
    params = np.linspace(-1, 1, 6).reshape(2, 3) if params is None else params
    return rule(params, noise=mechanism, sampler=sampler, run=run, learning_rate=0.1)


def pulls(sample: NDArray[np.intp]) -> Floats:
    """A gradient (2, 3) for each record."""
    return np.asarray(np.cos(np.arange(RECORDS * 6.0).reshape(RECORDS, 2, 3))[sample])
