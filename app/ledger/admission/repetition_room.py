"""Room of an account for repetitions of one event: at its orders, by its plan, below alert thresholds (ADR 0033)."""

from dataclasses import dataclass
from math import isinf
from typing import Final, NamedTuple

from app.accounting.curves import EXHAUSTED, RdpCurve, added
from app.accounting.exact_losses import quotient
from app.ledger.accounts.account import MOST_USED, Account
from app.ledger.accounts.account_records import ThresholdWatermark
from app.ledger.filter.filter_orders import FilterOrders, LeastShare
from app.ledger.filter.filters import UNLIMITED
from app.ledger.plan.plan_filter import Coordinates, repeated, repetitions
from app.ledger.plan.plans import Plan


class PlanRoom(NamedTuple):
    """What an account has used of its plan before repetitions of an event, and what they use.

    Args:
        owner: the account's id.
        taken: used by what is spent and held.
        most: repetitions that the plan covers; negative if it does not cover the event.
    """

    owner: str
    plan: Plan
    taken: Coordinates
    cost: Coordinates
    most: int

    @classmethod
    def of(cls, owner: str, plan: Plan, taken: Coordinates, cost: RdpCurve) -> "PlanRoom":
        """Compute how many repetitions a plan covers."""
        each = cost.used[owner]
        return cls(owner, plan, taken, each, _number(plan.repetitions(taken, each)))

    def after(self, count: int, cost: RdpCurve) -> "PlanRoom":
        """Charge the repetitions, and continue with another event."""
        return PlanRoom.of(self.owner, self.plan, repeated(self.taken, self.cost, count), cost)


LOOK_AHEAD: Final = 64
"""Repetitions for which the order that decides is looked up together."""


@dataclass(slots=True, eq=False)
class UsedShares:
    """Shares of an account's capacity before repetitions of an event, for the share after them.

    Args:
        orders: its loss and the event's cost at the orders of its filter; None without a limit.
        plan: id of the account, capacity of its plan, what is used of it and by a repetition; None without one.
        own_delta: the share of own deltas that counts (`Account.used`), which the event does not change.
        least: the order that decided last.
    """

    orders: FilterOrders | None
    plan: tuple[str, Coordinates, Coordinates, Coordinates] | None
    own_delta: float
    least: LeastShare | None = None

    @classmethod
    def of(cls, account: Account, spent: RdpCurve, cost: RdpCurve, room: "Room | None") -> "UsedShares":
        """Take the shares of a loss, and the cost of an event without a delta of its own.

        Where nothing is held, the account's room has the same loss at the same orders.
        """
        if account.limit is None:
            return cls(None, None, 0.0)
        gate, owner = account.bounds(), account.id
        plan = None
        if account.plan is not None and owner in spent.used:
            plan = owner, account.plan.capacity, spent.used[owner], cost.used[owner]
        own_delta = 0.0 if account.planned else quotient(spent.delta, gate.room)
        orders = None if room is None or not account.held.is_zero else room.orders
        return cls(orders or FilterOrders.of(gate, spent, cost), plan, own_delta)

    def charged(self, count: int, cost: RdpCurve, before: "Room", after: "Room") -> "UsedShares":
        """Charge the repetitions, and continue with another event, as the room has done."""
        orders, plan = self.orders, None
        if orders is not None:
            orders = after.orders if orders is before.orders else orders.after(count, cost)
        if self.plan is not None:
            owner, capacity, used, each = self.plan
            plan = owner, capacity, repeated(used, each, count), cost.used[owner]
        return UsedShares(orders, plan, self.own_delta)

    def after(self, count: int) -> float:
        """Compute the used share after repetitions."""
        if self.orders is None:
            return 0.0
        known = self.least
        if known is None or not known.first <= count <= known.last:
            known = self.least = self.orders.least_share(count, 0 if known is None else LOOK_AHEAD)
        least = known.after(count)
        if self.orders.has_exact_loss:
            least = min(least, self.orders.exact_share(count))
        if self.plan is not None:
            _, capacity, used, each = self.plan
            least = min(least, max(map(quotient, repeated(used, each, count), capacity)))
        return min(max(least, self.own_delta), MOST_USED)


class Room(NamedTuple):
    """How often an account admits an event, from one state of its balance on.

    Args:
        orders: its loss and the event's cost at the orders of its filter; None if no filter decides.
        plan: its plan, unless it has none or has left it.
        watched: units spent at the order of the threshold watermark; may be more than EXHAUSTED.
        used: usage of its own plan by what is spent, if the plan is the watermark.
        cost: the curve of one repetition.
        unannounced: repetitions before an alert threshold may be reached.
        most: repetitions that fit at the orders where the event has a cost, or by the plan; negative if none does.
        endless: those that fit where it has no cost, or by a plan of which it uses nothing; it does not fall.
    """

    orders: FilterOrders | None
    plan: PlanRoom | None
    watched: int
    used: Coordinates
    cost: RdpCurve
    unannounced: int
    most: int
    endless: int

    @classmethod
    def of(cls, account: Account, cost: RdpCurve, watermark: ThresholdWatermark, *, from_held: bool) -> "Room | None":
        """Compute the room of an account, which what is moved `from_held` to spent leaves as it is.

        None if its filter is not fixed, or has no delta left.
        """
        spent, orders, plan = account.spent, None, None
        if spent.delta > watermark.delta:
            return None
        if account.limit is not None and not from_held:
            assert account.exposure is None, "it is valid for one run only"
            gate = account.bounds()
            if not account.has_filter or account.own_delta() > gate.room:
                return None
            orders = FilterOrders.of(gate, spent + account.held, cost)
            if account.plan is not None and account.is_planned():
                taken = added(spent.used, account.held.used)[account.id]
                plan = PlanRoom.of(account.id, account.plan, taken, cost)
        used = () if watermark.planned is None else spent.used[watermark.planned[0]]
        return cls._at(orders, plan, spent.values.item(watermark.place), used, cost, watermark)

    def after(self, count: int, cost: RdpCurve, watermark: ThresholdWatermark) -> "Room":
        """Charge the repetitions, and continue with another event."""
        orders = None if self.orders is None else self.orders.after(count, cost)
        plan = None if self.plan is None else self.plan.after(count, cost)
        used = self.used
        if watermark.planned is not None:
            used = repeated(used, self.cost.used[watermark.planned[0]], count)
        watched = self.watched + self.cost.values.item(watermark.place) * count
        return Room._at(orders, plan, watched, used, cost, watermark)

    @staticmethod
    def _at(
        orders: FilterOrders | None,
        plan: PlanRoom | None,
        watched: int,
        used: Coordinates,
        cost: RdpCurve,
        watermark: ThresholdWatermark,
    ) -> "Room":
        each, bound = cost.values.item(watermark.place), watermark.bound
        if watermark.planned is not None:
            owner, limit = watermark.planned
            unannounced = _number(repetitions(limit, used, cost.used[owner]))
        elif watched > bound and bound < EXHAUSTED:
            unannounced = -1
        else:
            unannounced = UNLIMITED if not each or bound >= EXHAUSTED else (bound - watched) // each
        most, endless = (0, UNLIMITED) if orders is None else orders.repetitions()
        if plan is not None:  # what it covers without using anything does not run out
            most, endless = (max(most, plan.most), endless) if plan.most < UNLIMITED else (most, UNLIMITED)
        return Room(orders, plan, watched, used, cost, unannounced, most, endless)

    def left_after(self, count: int) -> int:
        """Count the repetitions that still fit after `count`; negative to ask the rule, as about leaving a plan."""
        if count > self.unannounced or (self.plan is not None and count > self.plan.most):
            return -1
        return max(self.most - count, self.endless)


def _number(repetitions: float) -> int:
    return UNLIMITED if isinf(repetitions) else int(repetitions)
