"""A model of runs and reservations that counts events, and what such counts cost."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from app.accounting.curves import RdpCurve
from app.accounting.events import DpEvent, EpsilonDelta, Gaussian, NeighboringRelation
from app.accounting.rdp import event_curve
from app.ledger.accounts.account import Account, zero_curve
from app.ledger.runs.decisions import Decision, DecisionOutcome
from app.ledger.step_events import PricedStep, StepEvent
from tests.api.trainer import within_limits

EVENTS: list[DpEvent] = [Gaussian(40.0), Gaussian(70.0), EpsilonDelta(0.001, 1e-9)]
PRICES = {event: event_curve(event, NeighboringRelation.ADD_OR_REMOVE_ONE) for event in EVENTS}


def cost(counts: Counter[DpEvent]) -> RdpCurve:
    return sum((PRICES[event].times(count) for event, count in counts.items()), zero_curve())


def cost_to(account: Account, path: Sequence[Account], counts: Counter[DpEvent]) -> RdpCurve:
    """What counts cost an account of a path, with what they use up of each plan that it counts."""
    workloads = {each.id: each.plan.workload for each in path if each.plan is not None}
    used = {}
    for owner, stored in account.spent.used.items():
        costs = [(workloads[owner].cost(event), count) for event, count in counts.items() if owner in workloads]
        used[owner] = tuple(sum(each[place] * count for each, count in costs) for place in range(len(stored)))
    return cost(counts).using(used)


@dataclass
class Plan:
    """A reservation, counted in events."""

    id: str
    run: str
    planned: Counter[DpEvent]
    lease: int
    until: datetime
    used: Counter[DpEvent] = field(default_factory=Counter)
    revoked: Counter[DpEvent] = field(default_factory=Counter)
    reported: Counter[DpEvent] = field(default_factory=Counter)
    further: Counter[DpEvent] = field(default_factory=Counter)
    forfeited: Counter[DpEvent] = field(default_factory=Counter)
    status: str = "active"
    executed: int | None = None

    @property
    def left(self) -> Counter[DpEvent]:
        """What may still be taken."""
        return self.planned - self.used - self.revoked

    @property
    def unused(self) -> Counter[DpEvent]:
        """What is held of the run's own account."""
        return self.planned - self.used

    def covers(self, event: DpEvent) -> bool:
        """Whether a step is let through by the reservation, or not revoked from it."""
        return bool(self.left[event]) or not self.revoked[event]

    def said_before(self, how: str, number: int) -> bool:
        """Whether it has ended in just this way."""
        return (self.status, how, self.executed) in {("voided", "void", None), ("committed", "commit", number)}

    def commit(self, number: int) -> None:
        """Further steps are taken in order, first those that may be, then those that were revoked."""
        further = number - self.used.total()
        for left, asked in ((self.left, True), (self.unused, False)):
            for event in self.planned:
                taken = min(further, self.unused[event], left[event])
                self.used[event] += taken
                self.reported[event] += 0 if asked else taken
                further -= taken
        self.status, self.executed = "committed", number

    def forfeit(self) -> None:
        self.status, self.forfeited = "forfeited", self.unused


@dataclass
class Trained:
    """A run, counted in events."""

    id: str
    ended: bool = False
    overdrawn: bool = False
    attempt: int = 1
    next_step: int = 0
    direct: Counter[DpEvent] = field(default_factory=Counter)
    plans: list[Plan] = field(default_factory=list)
    reports: int = 0

    @property
    def active(self) -> Plan | None:
        return next((plan for plan in self.plans if plan.status == "active"), None)

    def further_reports(self) -> bool:
        """Whether revoked steps were executed all the same since this was asked last."""
        before, self.reports = self.reports, sum(plan.reported.total() for plan in self.plans)
        return self.reports > before

    @property
    def settled(self) -> Counter[DpEvent]:
        """What is spent above the run."""
        closed = [plan.used + plan.forfeited for plan in self.plans if plan.status != "active"]
        return sum(closed, Counter(self.direct))

    def commit(self, plan: Plan, number: int) -> None:
        """What was executed without being asked for is numbered with the end."""
        self.next_step += number - plan.used.total()
        plan.commit(number)

    def ended_with(self, now: datetime, number: int | None, *, needed: bool) -> bool:
        """What becomes of the active reservation at the end of the run or an attempt; whether that end may be."""
        plan = self.active
        if plan is None:
            last = [plan.executed for plan in self.plans if plan.executed is not None][-1:]
            return number is None or last == [number]
        if now >= plan.until:
            plan.forfeit()
        elif number is None:
            if needed:
                return False
            plan.forfeit()
        elif plan.used.total() <= number <= plan.planned.total():
            self.commit(plan, number)
        else:
            return False
        return True


def fits(path: Sequence[Account], asked: Counter[DpEvent]) -> bool:
    """Whether accounts bear a charge, by their weights or their plans, and by what is spent and held."""
    priced = [PricedStep(StepEvent(event, count), PRICES[event]) for event, count in asked.items()]
    ready = [account.prepared_for(priced) for account in path]
    return within_limits([replace(each, spent=each.spent + cost_to(each, ready, asked)) for each in ready])


def said(entries: Sequence[Decision], plan: Plan, outcome: DecisionOutcome) -> Counter[DpEvent]:
    """What the run's chain says about a reservation."""
    total: Counter[DpEvent] = Counter()
    for entry in entries:
        for step in entry.steps:
            total[step.event] += step.count * ((entry.reservation_id, entry.outcome) == (plan.id, outcome))
    return total
