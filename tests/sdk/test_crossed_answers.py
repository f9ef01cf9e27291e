"""A proxy that gives a trainer another one's answer, or an old one: it is not believed, and the request is repeated."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx2
import pytest

from epsilon_ledger import (
    BudgetExceededError,
    EventCount,
    LedgerClient,
    Run,
    UnexpectedResponseError,
    gaussian,
    poisson_sampled,
)
from tests.sdk.fake_ledger import open_budget
from tests.sdk.simulation import LedgerWire

STEP = poisson_sampled(0.01, gaussian(2.0))
PLAN = [EventCount(event=STEP, count=3)]
Act = Callable[[Run], object]
ACTS: dict[str, tuple[Act, Act]] = {
    "steps": (lambda _: None, lambda run: run.authorize(2)),
    "steps of another number": (lambda run: run.authorize(len(run.state.name)), lambda run: run.authorize(2)),
    "a refusal": (lambda _: None, lambda run: run.authorize(10**6)),
    "a preview": (lambda _: None, lambda run: run.preview(2)),
    "a report": (lambda _: None, lambda run: run.report(2)),
    "a plan": (lambda _: None, lambda run: run.reserve(PLAN)),
    "a renewed plan": (lambda run: run.reserve(PLAN), lambda run: run.renew()),
    "a committed plan": (lambda run: run.reserve(PLAN), lambda run: run.commit(0)),
    "a voided plan": (lambda run: run.reserve(PLAN), lambda run: run.void()),
    "the state": (lambda _: None, lambda run: run.refresh()),
    "a pause": (lambda _: None, lambda run: run.pause()),
    "the end": (lambda _: None, lambda run: run.complete()),
    "an abortion": (lambda _: None, lambda run: run.abort()),
}


def heard(wire: LedgerWire, act: Callable[[], object]) -> httpx2.Response:
    """The first answer that an act of a client gets."""
    kept: list[httpx2.Response] = []

    def keep(request: httpx2.Request) -> httpx2.Response:
        kept.append(arrive(request))
        return kept[-1]

    arrive = wire.arrive
    with pytest.MonkeyPatch.context() as patch, suppress(BudgetExceededError):
        patch.setattr(wire, "arrive", keep)
        act()
    return kept[0]


def not_believed(wire: LedgerWire, reply: httpx2.Response, act: Callable[[], object]) -> None:
    wire.answers(reply)
    with pytest.raises(UnexpectedResponseError, match=r"release nothing|look at the run"):
        act()
    with suppress(BudgetExceededError):
        act()


@pytest.mark.parametrize("kind", ACTS)
def test_answer_to_another_run_is_not_believed(wire: LedgerWire, admin: LedgerClient, kind: str) -> None:
    (prepare, act), budget = ACTS[kind], open_budget(admin, 1.0)
    own, other = (wire.client().create_run(name, budget=budget, event=STEP) for name in ("own", "other"))
    for run in (own, other):
        prepare(run)
    not_believed(wire, heard(wire, lambda: act(other)), lambda: act(own))
    assert own.refresh().id == own.id
    assert own.next_step == admin.get_run(own.id).next_step


@pytest.mark.parametrize("action", ["pause", "complete"])
def test_old_state_of_a_run_does_not_end_it(wire: LedgerWire, admin: LedgerClient, action: str) -> None:
    run = wire.client().create_run("own", budget=open_budget(admin, 1.0), event=STEP)
    not_believed(wire, heard(wire, run.refresh), getattr(run, action))
    assert run.refresh().status == {"pause": "paused", "complete": "completed"}[action]


@pytest.mark.parametrize("other", [True, False], ids=["another run's", "an earlier one"])
def test_grant_that_is_not_its_own_releases_nothing(wire: LedgerWire, admin: LedgerClient, *, other: bool) -> None:
    budget = open_budget(admin, 1.0)
    terms: Any = {"budget": budget, "event": STEP, "prefetch": 2}
    own, another = (wire.client().create_run(name, **terms) for name in ("own", "other"))
    first = heard(wire, own.authorize)
    for _ in range(3):
        own.authorize()
    reply = heard(wire, another.authorize) if other else first
    not_believed(wire, reply, own.authorize)
    assert own.next_step == 5
    own.complete()
    assert admin.get_run(own.id).next_step == 5


def test_grant_of_other_counts_than_planned_is_returned_unused(
    wire: LedgerWire, admin: LedgerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which of its steps are the next ones, the trainer would not know."""
    planned, arrive = [gaussian(60.0)] * 2 + [gaussian(40.0)] * 3, wire.arrive

    def divide_otherwise(request: httpx2.Request) -> httpx2.Response:
        response = arrive(request)
        if not request.url.path.endswith("/reservations"):
            return response
        answer = json.loads(response.read())
        first, second = answer["events"]
        first["count"], second["count"] = 1, 4
        return httpx2.Response(response.status_code, json=answer)

    monkeypatch.setattr(wire, "arrive", divide_otherwise)
    terms: Any = {"budget": open_budget(admin, 1.0), "prefetch": 5, "schedule": lambda step: planned[step]}
    run = wire.client().create_run("own", **terms)
    assert run.authorize().reservation is None
    assert (run.state.reservation, run.next_step) == (None, 1)
    assert wire.asked[-3:] == ["reservations", "commit", "steps"]


def test_run_of_another_name_or_attempt_is_not_taken_up(wire: LedgerWire, admin: LedgerClient) -> None:
    budget, client = open_budget(admin, 1.0), wire.client()
    other = heard(wire, lambda: client.create_run("other", budget=budget, event=STEP))
    not_believed(wire, other, lambda: client.create_run("own", budget=budget, event=STEP))
    run = client.create_run("own", budget=budget, event=STEP)
    for act in (lambda: client.get_run(run.id), lambda: client.resume_run(run.id)):
        not_believed(wire, other, act)
    client.create_run("third", budget=budget, event=STEP)
    found = heard(wire, lambda: list(client.list_runs(path=f"{budget}/other")))
    not_believed(wire, found, lambda: client.get_run(f"{budget}/third"))
    old, kept = heard(wire, run.refresh), run.state_dict()
    real = heard(wire, lambda: client.get_run(run.id))
    wire.answers(real, old)
    with pytest.raises(UnexpectedResponseError, match="does not begin an attempt"):
        client.resume_run(kept)
