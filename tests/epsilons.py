"""The epsilon of charges, computed by this project's accountants at once and by dp_accounting's."""

from collections.abc import Mapping
from math import inf
from typing import Any

from dp_accounting import dp_event as theirs
from dp_accounting.pld import PLDAccountant
from dp_accounting.privacy_accountant import NeighboringRelation as TheirRelation
from dp_accounting.privacy_accountant import PrivacyAccountant
from dp_accounting.rdp import RdpAccountant

from app.accounting import events as dp
from app.accounting.curves import GRID_VERSION
from app.accounting.events import DpEvent, NeighboringRelation, event_from_dict
from app.accounting.rdp import event_curve
from app.accounting.tightest_epsilon import epsilon_by_curves, tightest_epsilon

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE

Charge = tuple[dict[str, Any], int]
"""An event as it is sent, and its count."""


def counts_of(*charges: Charge) -> dict[DpEvent, int]:
    """Sum the counts by event."""
    total: dict[DpEvent, int] = {}
    for sent, count in charges:
        event = event_from_dict(sent)
        total[event] = total.get(event, 0) + count
    return total


def tightest(*charges: Charge, delta: float = 1e-5, relation: NeighboringRelation = ADD) -> float:
    """Compute the epsilon that is read of an account to which these were charged, its limit aside."""
    counts = counts_of(*charges)
    return tightest_epsilon(counts, _curves(counts, relation), relation, delta)


def by_curves(*charges: Charge, delta: float = 1e-5, relation: NeighboringRelation = ADD) -> float:
    """Compute the epsilon of these by their Rényi curves alone."""
    counts = counts_of(*charges)
    return epsilon_by_curves(counts, _curves(counts, relation), delta)


def reference(*charges: Charge, delta: float = 1e-5, relation: NeighboringRelation = ADD) -> float:
    """Compute the smaller one of the epsilons that dp_accounting's RDP and PLD accountants print."""
    found, names = inf, TheirRelation[relation.name]
    for accountant in (RdpAccountant(neighboring_relation=names), PLDAccountant(names)):
        if _composed(accountant, counts_of(*charges)):
            found = min(found, float(accountant.get_epsilon(delta)))
    return found


def _composed(accountant: PrivacyAccountant, counts: Mapping[DpEvent, int]) -> bool:
    events = [(_theirs(event), count) for event, count in counts.items()]
    if not all(accountant.supports(event) for event, _ in events):
        return False
    for event, count in events:
        accountant.compose(event, count)
    return True


def _theirs(event: DpEvent) -> theirs.DpEvent:
    match event:
        case dp.Gaussian(noise):
            return theirs.GaussianDpEvent(noise)
        case dp.Laplace(noise):
            return theirs.LaplaceDpEvent(noise)
        case dp.PoissonSampled(probability, inner):
            return theirs.PoissonSampledDpEvent(probability, _theirs(inner))
    raise AssertionError(f"these tests do not compare {event}")


def _curves(counts: Mapping[DpEvent, int], relation: NeighboringRelation) -> dict[DpEvent, Any]:
    return {event: event_curve(event, relation, GRID_VERSION) for event in counts}
