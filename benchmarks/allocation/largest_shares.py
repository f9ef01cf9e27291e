"""Dominant shares as both papers define them, to compare ours with."""

from collections.abc import Sequence

import numpy as np

from app.ledger.scheduling.queue import Ledgers, WaitingReservation
from app.ledger.scheduling.scheduling_rules import Line, Scores
from app.ledger.settings.allocation import SchedulingRule


class LargestShares(Line):
    """Plans by the share of an account at the order at which it is largest; ours takes that at which it is least."""

    def __init__(self) -> None:
        super().__init__(SchedulingRule.SMALLEST_SHARE)

    def scores(self, plans: Sequence[WaitingReservation], ledgers: Ledgers) -> Scores:
        """Compute the scores of plans."""
        return {plan.id: tuple(sorted(_shares(plan, ledgers), reverse=True)) for plan in plans}


def _shares(plan: WaitingReservation, ledgers: Ledgers) -> list[float]:
    found = []
    for name in plan.path[:-1]:
        bounds = ledgers.accounts[name].prepared_for(plan.steps, held=True).bounds()
        usable = bounds.bounds > 0
        found.append(float(np.max(plan.cost.values[bounds.places[usable]] / bounds.bounds[usable])))
    return found
