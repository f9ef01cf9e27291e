"""Steps admitted by a filter's orders, relative to an in-process accountant's: `python -m benchmarks.filters`.

Such an accountant spends the whole delta at every order, which is valid for plans fixed in advance only. The first
table is for a workload known in advance, the second for one whose noise or sampling changes after the first step.
"""

from collections.abc import Iterator
from itertools import product

import numpy as np

from app.accounting.conversion import declared_bounds
from app.accounting.curves import GRID_VERSION, RdpCurve
from app.accounting.events import Gaussian, NeighboringRelation, PoissonSampled
from app.ledger.accounts.account import Account, AccountKind, zero_curve
from app.ledger.admission.admission import repetitions_left
from app.ledger.filter.limits import Limit
from app.ledger.step_events import PricedStep, StepEvent

PROBABILITIES = (1e-3, 256 / 60000, 0.01, 0.05, 0.2, 1.0)
NOISE_MULTIPLIERS = (1.0, 1.1, 1.5, 2.0, 4.0, 8.0)
EPSILONS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 20.0)
DELTAS = (1e-5, 1e-6, 1e-8)
CHANGES = ((0.6, 1.0), (0.8, 1.0), (1.25, 1.0), (2.0, 1.0), (1.0, 0.5), (1.0, 2.0))
FEWEST = 500


def account(limit: Limit) -> Account:
    """Return an empty account with a limit."""
    return Account(
        id="bud_bench",
        kind=AccountKind.BUDGET,
        parent_id=None,
        population_id="pop_bench",
        name="bench",
        path="bench",
        depth=1,
        relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        limit=limit,
        planned=(),
        weights=None,
        spent=zero_curve(),
        held=zero_curve(),
    )


def step(q: float, z: float) -> PricedStep:
    """Return one step of DP-SGD, or a plain Gaussian at q = 1."""
    event = PoissonSampled(q, Gaussian(z)) if q < 1 else Gaussian(z)
    return account(Limit(1.0, 1e-5)).price(StepEvent(event, 1))


def steps_in_advance(limit: Limit, curve: RdpCurve) -> int:
    """Count the repetitions that fit if they are fixed in advance."""
    bounds = declared_bounds(limit.epsilon, limit.delta, GRID_VERSION)
    return int((bounds // np.maximum(curve.values, 1)).max())


def shares(noise_factor: float, probability_factor: float) -> Iterator[tuple[float, str]]:
    """Yield the ratios of the counts, with settings, of a step whose parameters changed after the first one.

    Only settings of which at least 500 steps fit in advance.
    """
    for q, z, epsilon, delta in product(PROBABILITIES, NOISE_MULTIPLIERS, EPSILONS, DELTAS):
        limit = Limit(epsilon, delta)
        later = step(min(q * probability_factor, 1.0), z * noise_factor)
        in_advance = steps_in_advance(limit, later.curve)
        if in_advance >= FEWEST:
            tuned = account(limit).prepared_for([step(q, z)])
            admitted, _ = repetitions_left([tuned], later)
            yield admitted / in_advance, f"q={q:.4g} z={z:g} epsilon={epsilon:g} delta={delta:g}"


def report(name: str, found: list[tuple[float, str]]) -> None:
    """Print one row."""
    values = np.array([share for share, _ in found])
    low, median = np.quantile(values, [0.05, 0.5])
    print(f"{name:34} {len(found):5} {min(found)[0]:8.1%} {low:8.1%} {median:8.1%}   {min(found)[1]}")


def main() -> None:
    """Print the tables."""
    print(f"{'workload':34} {'n':>5} {'worst':>8} {'5 %':>8} {'median':>8}   worst setting")
    report("as planned", list(shares(1.0, 1.0)))
    for noise, probability in CHANGES:
        report(f"then noise x{noise:g}, sampling x{probability:g}", list(shares(noise, probability)))


if __name__ == "__main__":
    main()
