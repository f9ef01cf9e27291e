"""What the service should answer, in plain Python: the model that the state machine compares it with.

Every event here is a Gaussian, whose divergence is the order times a number, 1 / (2 sigma^2). So what an account holds
and what is spent on it are one number each, and the filter is a comparison. Nothing of the service is used but its grid
of orders.
"""

from dataclasses import dataclass, field
from math import erfc, exp, floor, log, log1p, sqrt
from typing import Any

from app.accounting.curves import GRID_VERSION, orders

ADAPTIVE_SHARE = 0.96
"""Of delta, at the order that fits most repetitions (DESIGN section 4, ADR 0007)."""

PLAN_SHARE, DEFAULT_SHARE = 0.975, 0.55
"""Of delta, for a plan, and for the default event of a run with a limit (ADR 0038)."""

SHARED = 0.99
"""Of delta, for the plan and the orders; the rest is kept for mechanisms' own deltas."""

UNLIMITED = 1e9
"""More than any account above can hold."""

Items = tuple[tuple[float, int], ...]
"""Noise multipliers, and how many steps with each, in order."""

REACHED = {"pause": "paused", "resume": "active", "complete": "completed", "abort": "aborted"}


def cost(sigma: float) -> float:
    """The divergence of one step, by order."""
    return 1 / (2 * sigma * sigma)


def capacity(epsilon: float, delta: float, planned: float | None = None, share: float = PLAN_SHARE) -> float:
    """The most that fits into a limit: at the best order, or by a plan of one noise without end, if that is more."""
    if planned is None:
        return _at_best_order(epsilon, delta * ADAPTIVE_SHARE)
    steps = floor((planned * _most_mu(epsilon, delta * share)) ** 2)
    by_orders = _at_best_order(epsilon, delta * ADAPTIVE_SHARE * (1 - share / SHARED))
    return max((steps + 1e-6) * cost(planned), by_orders)


def _at_best_order(epsilon: float, delta: float) -> float:
    return max(
        (epsilon - log1p(-1 / order) + (log(delta) + log(order)) / (order - 1)) / order
        for order in map(float, orders(GRID_VERSION))
    )


def _most_mu(epsilon: float, delta: float) -> float:
    """The largest mu of a Gaussian mechanism within (epsilon, delta): Balle and Wang 2018, Theorem 8."""

    def reached(mu: float) -> float:
        left, right = epsilon / mu - mu / 2, epsilon / mu + mu / 2
        return (erfc(left / sqrt(2)) - exp(epsilon) * erfc(right / sqrt(2))) / 2

    low, high = 1e-6, 100.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if reached(middle) <= delta else (low, middle)
    return low


@dataclass
class Account:
    """What may be spent and what is."""

    capacity: float
    parent: "Account | None" = None
    spent: float = 0.0

    @property
    def path(self) -> "list[Account]":
        """The account and everything above it."""
        return [self, *(self.parent.path if self.parent else [])]

    def fits(self, more: float) -> bool:
        """Whether the account and all above it can hold more."""
        return all(account.spent + more <= account.capacity for account in self.path)

    def remaining(self, sigma: float) -> int:
        """How many further steps fit."""
        return max(0, min(floor((account.capacity - account.spent) / cost(sigma)) for account in self.path))

    def charge(self, more: float) -> None:
        """Spend, here and above."""
        for account in self.path:
            account.spent += more


@dataclass(frozen=True)
class Request:
    """A request for steps; sigma None is the run's default."""

    run: str
    items: tuple[tuple[float | None, int], ...]
    first_step: int | None = None
    key: str | None = None
    mode: str = "authorize"
    on_exceed: str = "refuse"


@dataclass(frozen=True)
class Expected:
    """What must be answered: members of the reply, and whether it was given before."""

    status: int
    members: dict[str, Any]
    replayed: bool = False


@dataclass
class Run:
    """A run and what it was told."""

    account: Account
    sigma: float | None
    status: str = "active"
    next_step: int = 0
    decisions: list[dict[str, Any]] = field(default_factory=list)
    taken: dict[int, tuple[tuple[object, ...], Expected]] = field(default_factory=dict)


@dataclass
class Model:
    """Runs by id, and what each key has pinned: None for a key that created something."""

    runs: dict[str, Run] = field(default_factory=dict)
    keys: dict[str, tuple[tuple[object, ...], Expected] | None] = field(default_factory=dict)

    def steps(self, request: Request, *, dry_run: bool) -> Expected:
        """Decide about a request as the service should."""
        run = self.runs[request.run]
        if run.sigma is None and any(sigma is None for sigma, _ in request.items):
            return Expected(422, {"code": "invalid_request"})
        items = tuple((sigma or run.sigma or 0.0, count) for sigma, count in request.items)
        identity = (request.run, items, request.mode, request.on_exceed)
        earlier = self._earlier(run, request, identity)
        if earlier is not None:
            return earlier
        if request.mode == "authorize" and run.status != "active":
            return Expected(409, {"code": "run_state_conflict"})
        if request.first_step is not None and request.first_step > run.next_step:
            return Expected(409, {"code": "sequence_gap", "expected_step": run.next_step})
        return self._decided(run, request, items, identity, dry_run=dry_run)

    def change(self, run_id: str, action: str) -> int:
        """Pause, resume, complete or abort a run; returns the status of the answer."""
        run, reached = self.runs[run_id], REACHED[action]
        final = {"completed", "aborted"}
        if run.status != reached and (run.status in final or (run.status == "overdrawn" and reached not in final)):
            return 409
        run.status = reached
        return 200

    def _earlier(self, run: Run, request: Request, identity: tuple[object, ...]) -> Expected | None:
        if request.key in self.keys:
            pinned = self.keys[request.key]
            same = pinned is not None and pinned[0] == identity
            if pinned is None or not same or request.first_step not in {None, pinned[1].members["first_step"]}:
                return Expected(422, {"code": "idempotency_key_reused"})
            return Expected(pinned[1].status, pinned[1].members, replayed=True)
        if request.first_step is None or request.first_step >= run.next_step:
            return None
        taken = run.taken.get(request.first_step)
        if taken is None or taken[0] != identity:
            return Expected(409, {"code": "sequence_conflict", "next_step": run.next_step})
        return Expected(taken[1].status, taken[1].members, replayed=True)

    def _decided(
        self, run: Run, request: Request, items: Items, identity: tuple[object, ...], *, dry_run: bool
    ) -> Expected:
        asked = [sigma for sigma, count in items for _ in range(count)]
        fitting = self._prefix(run, asked)
        count = len(asked) if request.mode == "report" or request.on_exceed == "refuse" else fitting or len(asked)
        members: dict[str, Any] = {"run": request.run, "first_step": run.next_step, "count": count, "dry_run": dry_run}
        charged = request.mode == "report" or count <= fitting
        spends = sum(cost(sigma) for sigma in asked[:count])
        before = [(account, account.spent) for account in run.account.path]
        if not charged:
            members |= {"code": "budget_exceeded", "decision": "refused", "max_count_that_fits": fitting}
        else:
            over = not run.account.fits(spends)
            run.account.charge(spends)
            members |= {
                "decision": "reported" if request.mode == "report" else "admitted",
                "next_step": run.next_step + count,
                "requested_count": len(asked),
                "steps_remaining": 0 if over else run.account.remaining(asked[count - 1]),
                "overdrawn": over,
            }
        expected = Expected(200 if charged else 403, members)
        if dry_run:
            for account, spent in before:
                account.spent = spent
        else:
            self._record(run, request, identity, expected)
        return expected

    def _record(self, run: Run, request: Request, identity: tuple[object, ...], expected: Expected) -> None:
        members = expected.members
        run.decisions.append(members)
        if request.key is not None:
            self.keys[request.key] = identity, expected
        if expected.status != 200:
            return
        run.taken[run.next_step] = identity, expected
        run.next_step = members["next_step"]
        if members["overdrawn"] and run.status not in {"completed", "aborted"}:
            run.status = "overdrawn"

    @staticmethod
    def _prefix(run: Run, asked: list[float]) -> int:
        """How many of the first steps fit."""
        spends, fitting = 0.0, 0
        for fitting, sigma in enumerate([*asked, 0.0]):
            if sigma and run.account.fits(spends + cost(sigma)):
                spends += cost(sigma)
            else:
                return fitting
        return fitting
