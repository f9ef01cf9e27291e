"""The real service beside a model in plain Python: whatever is asked, in whatever order, both answer the same."""

import itertools
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, Phase, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from app.service.verification import verify
from tests.conftest import Ledger
from tests.reliability.conftest import ROUNDS
from tests.reliability.model import (
    DEFAULT_SHARE,
    PLAN_SHARE,
    UNLIMITED,
    Account,
    Expected,
    Model,
    Request,
    Run,
    capacity,
)

STEPS = 40
EXAMPLES = {"sqlite": 8 * ROUNDS, "postgresql": 3 * ROUNDS if ROUNDS > 1 else 2}
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
        agrees(self.post(path, body, request.key), expected, dry_run=dry_run)

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


def agrees(reply: httpx2.Response, expected: Expected, *, dry_run: bool) -> None:
    """The answer is the model's, in every member that the model knows."""
    answer = reply.json()
    members = expected.members | ({"dry_run": dry_run} if "dry_run" in expected.members else {})
    assert reply.status_code == expected.status, reply.text
    assert {name: answer.get(name) for name in members} == members, reply.text
    assert ("idempotent-replayed" in reply.headers) == expected.replayed
    if reply.status_code == httpx2.codes.OK and not answer["overdrawn"]:
        assert answer["epsilon"] <= answer["epsilon_limit"]


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
