"""The full rule of admission for all steps of a training, however a program divides them.

Curves are integers, so n charges of one event are the same as one charge of n. Two things differ, and both are tried:
the first charge of an account chooses its filter, and a plan that is only reserved never ends an account's plan.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.accounting.calibration.monotone_search import smallest_fitting
from app.ledger.accounts.account import Account
from app.ledger.admission.admission import ended_plans, first_that_fit, hold_if_fitting, record
from app.ledger.governance.policy_checks import sources_of
from app.ledger.settings.policies import effective
from app.ledger.settings.policy_rules import DeviationHandling, RequirePlan
from app.ledger.step_events import PricedStep


@dataclass(frozen=True, slots=True)
class Trial:
    """The full rule for all steps of a training.

    Args:
        keeps_plans: whether a policy refuses steps that end an account's plan.
        keeps_events: whether a policy refuses events that the run has not declared.
    """

    keeps_plans: bool
    keeps_events: bool

    @classmethod
    def on(cls, path: Sequence[Account], *, declared: bool) -> "Trial":
        """Read the policies of a path."""
        policy = effective(sources_of(path))
        return cls(policy.require_plan is RequirePlan.STAY, declared and policy.deviations is DeviationHandling.REFUSE)

    def admits(self, path: Sequence[Account], steps: Sequence[PricedStep]) -> bool:
        """Check whether steps are admitted to the last one, however they are divided."""
        charged = record(path, steps)
        if charged.overdrawn or (self.keeps_plans and charged.ended_plans):
            return False
        held = hold_if_fitting(path, steps)
        return held is not None and not (self.keeps_plans and ended_plans(path, held, steps))

    def longest(self, path: Sequence[Account], steps: Sequence[PricedStep]) -> int:
        """Count the steps, from the first, that are admitted however they are divided."""
        fitting = min(first_that_fit(path, steps, held=held) for held in (False, True))
        if not self.keeps_plans or not fitting:
            return fitting

        def keeps(fewer: int) -> bool:
            return not record(path, _first(steps, fitting - fewer)).ended_plans

        fewer = smallest_fitting(keeps, 0, 0, fitting - 1)
        return 0 if fewer is None else fitting - fewer


def _first(steps: Sequence[PricedStep], count: int) -> list[PricedStep]:
    kept = []
    for priced in steps:
        if count <= 0:
            break
        kept.append(priced._replace(step=replace(priced.step, count=min(priced.step.count, count))))
        count -= priced.step.count
    return kept
