"""The real service beside a model in plain Python: whatever is asked, in whatever order, both answer the same.

Every event here is a Gaussian, whose divergence is the order times a number, 1 / (2 sigma^2). So what an account holds
and what is spent on it are one number each, and the filter is a comparison. Nothing of the service is used by the model
but its grid of orders.
"""

import itertools
from dataclasses import dataclass, field
from math import erfc, exp, floor, log, log1p, sqrt
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, Phase, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from app.accounting.curves import GRID_VERSION, orders
from app.service.verification.verify import verify
from tests.conftest import Ledger
from tests.reliability.conftest import ROUNDS

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

    def at_best_order(delta: float) -> float:
        orders_ = [float(order) for order in orders(GRID_VERSION)]
        return max((epsilon - log1p(-1 / a) + (log(delta) + log(a)) / (a - 1)) / a for a in orders_)

    if planned is None:
        return at_best_order(delta * ADAPTIVE_SHARE)
    steps = floor((planned * _most_mu(epsilon, delta * share)) ** 2)
    return max((steps + 1e-6) * cost(planned), at_best_order(delta * ADAPTIVE_SHARE * (1 - share / SHARED)))


def _most_mu(epsilon: float, delta: float) -> float:
    """The largest mu of a Gaussian mechanism within (epsilon, delta): Balle and Wang 2018, Theorem 8."""
    low, high = 1e-6, 100.0
    for _ in range(200):
        mu = (low + high) / 2
        left, right = epsilon / mu - mu / 2, epsilon / mu + mu / 2
        reached = (erfc(left / sqrt(2)) - exp(epsilon) * erfc(right / sqrt(2))) / 2
        low, high = (mu, high) if reached <= delta else (low, mu)
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
            members |= {"code": "budget_exceeded", "decision": "refused", "max_steps_that_fit": fitting}
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


STEPS = 40
EXAMPLES = {"sqlite": 8 * ROUNDS if ROUNDS > 1 else 4, "postgresql": 3 * ROUNDS if ROUNDS > 1 else 2}
VERIFIED_EVERY = 8
"""After so many examples the whole ledger is verified, and at the end: what is wrong in it stays wrong."""
ASKED_EVERY = 4
"""After so many rules of an example each run is asked for, and at its end."""
DEEPEST = 4
PHASES = (Phase.reuse, Phase.generate, *([Phase.shrink] if ROUNDS > 1 else []))
"""To look for a shorter example takes minutes: `make soak` does."""

NOISES = [10.0, 30.0]
LIMITS = [0.5, 1.0, 2.0]
DELTA = 1e-5

noises = st.sampled_from(NOISES)
plans = st.none() | noises
limits = st.sampled_from(LIMITS)
items = st.lists(st.tuples(st.none() | noises, st.integers(1, 12)), min_size=1, max_size=3)
numberings = st.sampled_from(["none", "next", "next", "gap", "past"])
keyings = st.sampled_from(["none", "fresh", "used"])

_numbers = itertools.count()
_examples = itertools.count(1)


def event(sigma: float | None) -> dict[str, Any] | None:
    return None if sigma is None else {"type": "gaussian", "noise_multiplier": sigma}


def plan(sigma: float | None) -> list[dict[str, Any]]:
    return [] if sigma is None else [{"event": event(sigma)}]


class Beside(RuleBasedStateMachine):
    """A population of its own for each example, in one service."""

    ledger: Ledger
    budgets: Bundle[str] = Bundle("budgets")
    runs: Bundle[str] = Bundle("runs")
    sent: Bundle[tuple[Request, bool]] = Bundle("sent")

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.accounts: dict[str, Account] = {}
        self.creations: list[tuple[str, dict[str, object], str, bytes]] = []
        self.taken = 0

    def post(self, path: str, body: dict[str, object], key: str | None = None) -> httpx2.Response:
        headers = {} if key is None else {"Idempotency_Key": key}
        return self.ledger.post(path, body, **headers)

    @initialize(target=budgets, epsilon=limits, planned=plans)
    def population(self, epsilon: float, planned: float | None) -> str:
        name = f"population{next(_numbers)}"
        self.ledger.population(name, limit={"epsilon": epsilon, "delta": DELTA}, planned=plan(planned))
        self.accounts[name] = Account(capacity(epsilon, DELTA, planned))
        return self.open_budget(name, epsilon, planned, None)

    @rule(target=budgets, parent=budgets, epsilon=limits, planned=plans)
    def budget(self, parent: str, epsilon: float, planned: float | None) -> str:
        assume(parent.count("/") < DEEPEST)
        return self.open_budget(parent, epsilon, planned, f"key{next(_numbers)}")

    def open_budget(self, parent: str, epsilon: float, planned: float | None, key: str | None) -> str:
        name = f"budget{next(_numbers)}"
        limit = {"epsilon": epsilon, "delta": DELTA}
        body: dict[str, object] = {"name": name, "parent": parent, "limit": limit, "planned": plan(planned)}
        self.created("/v1/budgets", body, key)
        path = f"{parent}/{name}"
        self.accounts[path] = Account(capacity(epsilon, DELTA, planned), self.accounts[parent])
        return path

    @rule(
        target=runs,
        parent=budgets,
        sigma=st.none() | noises,
        epsilon=st.none() | limits,
        planned=plans,
        key=st.booleans(),
    )
    def register(
        self, parent: str, sigma: float | None, epsilon: float | None, planned: float | None, *, key: bool
    ) -> str:
        body: dict[str, object] = {"name": "model", "budget": parent, "event": event(sigma)}
        if epsilon is not None:
            body |= {"limit": {"epsilon": epsilon, "delta": DELTA}, "planned": plan(planned)}
        made = self.created("/v1/runs", body, f"key{next(_numbers)}" if key else None)
        most, share = UNLIMITED, DEFAULT_SHARE if planned is None else PLAN_SHARE
        if epsilon is not None:
            most = capacity(epsilon, DELTA, sigma if planned is None else planned, share)
        self.model.runs[made["id"]] = Run(Account(most, self.accounts[parent]), sigma)
        return str(made["id"])

    def created(self, path: str, body: dict[str, object], key: str | None) -> dict[str, Any]:
        reply = self.post(path, body, key)
        assert reply.status_code == 201, reply.text
        if key is not None:
            self.model.keys[key] = None
            self.creations.append((path, body, key, reply.content))
        made: dict[str, Any] = reply.json()
        return made

    @rule(choice=st.randoms(use_true_random=False))
    def create_again(self, choice: Any) -> None:  # noqa: ANN401 - hypothesis' own Random
        """The same key gets the same bytes; another body, or a key that steps have used, is refused."""
        if not self.creations:
            return
        path, body, key, first = choice.choice(self.creations)
        again = self.post(path, body, key)
        assert (again.status_code, again.content) == (201, first)
        assert again.headers["idempotent-replayed"] == "true"
        other = self.post(path, body | {"name": "another"}, key)
        assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
        used = [known for known, pinned in self.model.keys.items() if pinned is not None]
        if used:
            third = self.post(path, body | {"name": "a third"}, choice.choice(used))
            assert (third.status_code, third.json()["code"]) == (422, "idempotency_key_reused")

    @rule(path=budgets)
    def take_a_name_twice(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        reply = self.post("/v1/budgets", {"name": name, "parent": parent, "limit": {"epsilon": 1.0, "delta": DELTA}})
        assert (reply.status_code, reply.json()["code"]) == (409, "name_taken")

    @rule(
        target=sent,
        run_id=runs,
        wanted=items,
        numbering=numberings,
        keying=keyings,
        ways=st.sampled_from([("authorize", "refuse")] * 4 + [("authorize", "truncate"), ("report", "refuse")]),
        dry_run=st.sampled_from([False, False, False, True]),
        choice=st.randoms(use_true_random=False),
    )
    def steps(
        self,
        run_id: str,
        wanted: list[tuple[float | None, int]],
        numbering: str,
        keying: str,
        ways: tuple[str, str],
        *,
        dry_run: bool,
        choice: Any,  # noqa: ANN401 - hypothesis' own Random
    ) -> tuple[Request, bool]:
        run = self.model.runs[run_id]
        first_step = {
            "none": None,
            "next": run.next_step,
            "gap": run.next_step + choice.randint(1, 3),
            "past": choice.randint(0, max(0, run.next_step - 1)),
        }[numbering]
        key = None if keying == "none" else f"key{next(_numbers)}"
        if keying == "used" and self.model.keys:
            key = choice.choice(list(self.model.keys))
        request = Request(run_id, tuple(wanted), first_step, key, *ways)
        self.ask(request, dry_run=dry_run)
        return request, dry_run

    @rule(earlier=sent)
    def repeat(self, earlier: tuple[Request, bool]) -> None:
        """Whatever happened since: the model knows whether that is a new question."""
        request, dry_run = earlier
        self.ask(request, dry_run=dry_run)

    @rule(run_id=runs, action=st.sampled_from(["pause", "resume", "resume", "complete", "abort"]))
    def change(self, run_id: str, action: str) -> None:
        reply = self.post(f"/v1/runs/{run_id}/{action}", {})
        assert reply.status_code == self.model.change(run_id, action), reply.text

    def ask(self, request: Request, *, dry_run: bool) -> None:
        body: dict[str, object] = {"mode": request.mode, "on_exceed": request.on_exceed}
        if len(request.items) == 1:
            [(sigma, count)] = request.items
            body |= {"count": count, "event": event(sigma)}
        elif any(sigma is None for sigma, _ in request.items):
            default = self.model.runs[request.run].sigma or NOISES[0]  # in a list, every event is spelled out
            spelled = tuple((sigma or default, count) for sigma, count in request.items)
            request = Request(request.run, spelled, request.first_step, request.key, request.mode, request.on_exceed)
        if len(request.items) > 1:
            body["events"] = [{"event": event(sigma), "count": count} for sigma, count in request.items]
        if request.first_step is not None:
            body["first_step"] = request.first_step
        expected = self.model.steps(request, dry_run=dry_run)
        path = f"/v1/runs/{request.run}/steps" + ("?dry_run=true" if dry_run else "")
        # The answer is the model's, in every member that the model knows.
        reply = self.post(path, body, request.key)
        answer = reply.json()
        members = expected.members | ({"dry_run": dry_run} if "dry_run" in expected.members else {})
        assert reply.status_code == expected.status, reply.text
        assert {name: answer.get(name) for name in members} == members, reply.text
        assert ("idempotent-replayed" in reply.headers) == expected.replayed
        if reply.status_code == httpx2.codes.OK and not answer["overdrawn"]:
            assert answer["used"] <= 1

    @rule(run_id=runs)
    def history(self, run_id: str) -> None:
        answer = self.ledger.get(f"/v1/runs/{run_id}/history?max_points=2000").json()
        known = self.model.runs[run_id].decisions
        assert answer["decisions"] == len(known)
        for point, decision in zip(answer["points"], known, strict=True):
            shared = {name: decision[name] for name in ("decision", "first_step", "count")}
            assert shared == {name: point[name] for name in shared}

    @invariant()
    def now_and_then_all_is_compared(self) -> None:
        self.taken += 1
        if self.taken % ASKED_EVERY == 0:
            self.runs_are_where_they_should_be()

    def runs_are_where_they_should_be(self) -> None:
        for run_id, run in self.model.runs.items():
            answer = self.ledger.get(f"/v1/runs/{run_id}").json()
            assert (answer["status"], answer["next_step"]) == (run.status, run.next_step)

    def teardown(self) -> None:
        self.runs_are_where_they_should_be()
        if next(_examples) % VERIFIED_EVERY == 0:
            verified(self.ledger)


def verified(ledger: Ledger) -> None:
    """The whole ledger is sound."""
    found = verify(ledger.database)
    assert found.sound, found.problems


@pytest.mark.both_databases
def test_service_answers_as_the_model(ledger: Ledger) -> None:
    Beside.ledger = ledger
    run_state_machine_as_test(
        Beside,
        settings=settings(
            max_examples=EXAMPLES[ledger.database.dialect],
            stateful_step_count=STEPS,
            deadline=None,
            phases=PHASES,
            suppress_health_check=list(HealthCheck),
        ),
    )
    verified(ledger)
