"""Truncation: of a request that does not fit, the longest prefix is admitted."""

from typing import Any

import pytest

from tests.api.test_refusals import more_noise
from tests.api.trainer import HUGE, LOUD, QUIET, Trainer, counted, hired, is_refused
from tests.conftest import SAMPLED, Ledger

LISTS: dict[str, list[tuple[dict[str, Any], int]]] = {
    "one event": [(LOUD, 10**9)],
    "the first event is cut": [(LOUD, 10**6), (QUIET, 4)],
    "the second event is cut": [(QUIET, 11), (LOUD, 10**6), (QUIET, 1)],
    "the last event is left out": [(QUIET, 11), (LOUD, 9), (HUGE, 1)],
    "the middle event is left out, and all behind it": [(LOUD, 3), (HUGE, 1), (SAMPLED, 1)],
    "an event comes twice": [(LOUD, 60), (QUIET, 20), (LOUD, 60), (QUIET, 20)] * 4,
}


FURNISHED = {"trainer": hired}


def _prefix(items: list[tuple[dict[str, Any], int]], count: int) -> list[tuple[dict[str, Any], int]]:
    """The first so many steps of a list."""
    taken = []
    for event, times in items:
        if count > 0:
            taken.append((event, min(times, count)))
        count -= times
    return taken


@pytest.mark.parametrize("event", [None, LOUD], ids=["orders", "plan"])
@pytest.mark.parametrize("name", LISTS)
def test_the_longest_prefix_is_admitted(ledger: Ledger, name: str, event: dict[str, Any] | None) -> None:
    """By the orders alone, or by the plan that the run's default event is as well."""
    trainer, items = hired(ledger, limit={"epsilon": 0.7, "delta": 1e-5}, event=event), LISTS[name]
    asked = sum(count for _, count in items)
    preview = trainer.steps(events=counted(*items), on_exceed="truncate", dry_run=True).json()
    answer = trainer.steps(events=counted(*items), on_exceed="truncate").json()
    assert answer == preview | {"dry_run": False}
    fits = answer["count"]
    assert (answer["decision"], answer["requested_count"], answer["next_step"]) == ("admitted", asked, fits)
    assert 0 < fits < asked
    kept = _prefix(items, fits)
    assert [spent for spent, _ in trainer.balance()] == trainer.costs(*kept)
    assert trainer.history()[-1]["events"] == counted(*kept)
    assert trainer.sound()
    further, _ = _prefix(items, fits + 1)[-1]
    is_refused(trainer.steps(event=further), 403, "budget_exceeded")


def test_a_refusal_tells_the_same_prefix(trainer: Trainer) -> None:
    events = counted((QUIET, 11), (LOUD, 10**6), (QUIET, 1))
    answer = is_refused(trainer.steps(events=events), 403, "budget_exceeded")
    assert trainer.steps(events=events, on_exceed="truncate").json()["count"] == answer["max_count_that_fits"]


def test_what_fits_is_not_cut(trainer: Trainer) -> None:
    answer = trainer.steps(events=counted((QUIET, 3), (LOUD, 4)), on_exceed="truncate").json()
    assert (answer["count"], answer["requested_count"], answer["next_step"]) == (7, 7, 7)
    assert trainer.path()[0].spent == trainer.price((QUIET, 3), (LOUD, 4))


@pytest.mark.both_databases
def test_to_the_last_step_and_no_further(trainer: Trainer) -> None:
    left = trainer.steps().json()["steps_remaining"]
    answer = trainer.steps(count=left + 1, on_exceed="truncate").json()
    assert (answer["count"], answer["steps_remaining"]) == (left, 0)
    answer = is_refused(trainer.steps(on_exceed="truncate"), 403, "budget_exceeded")
    assert (answer["count"], answer["max_count_that_fits"]) == (1, 0)
    assert (more_noise(answer) or 61) > 60
    assert trainer.sound()


def test_nothing_that_fits_is_a_refusal_that_charges_nothing(trainer: Trainer) -> None:
    before = trainer.balance()
    answer = is_refused(
        trainer.steps(events=counted((HUGE, 2), (LOUD, 1)), on_exceed="truncate", key="k-1"), 403, "budget_exceeded"
    )
    assert (answer["decision"], answer["count"], answer["max_count_that_fits"]) == ("refused", 3, 0)
    assert trainer.balance() == before
    again = trainer.steps(events=counted((HUGE, 2), (LOUD, 1)), on_exceed="truncate", key="k-1")
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json() | {"request_id": None} == answer | {"request_id": None}


@pytest.mark.parametrize("key", [None, "k-1"])
def test_a_repeat_says_the_same(trainer: Trainer, key: str | None) -> None:
    body: dict[str, Any] = {"count": 10**6, "first_step": 0, "on_exceed": "truncate"}
    first = trainer.steps(**body, key="k-1")
    before = trainer.rows()
    again = trainer.steps(**body, key=key)
    assert (again.status_code, again.content) == (200, first.content)
    assert again.headers["idempotent-replayed"] == "true"
    is_refused(trainer.steps(**body | {"count": first.json()["count"]}), 409, "sequence_conflict")
    is_refused(trainer.steps(**body | {"on_exceed": "refuse"}), 409, "sequence_conflict")
    is_refused(trainer.steps(**body | {"count": 10**6 + 1}, key="k-1"), 422, "idempotency_key_reused")
    is_refused(trainer.steps(**body | {"on_exceed": "refuse"}, key="k-1"), 422, "idempotency_key_reused")
    assert trainer.rows() == before


def test_what_others_hold_is_left_to_them(trainer: Trainer) -> None:
    other = Trainer(trainer.ledger, trainer.ledger.run(name="other", event=LOUD))
    whole = trainer.read()["steps_remaining"]
    other.reserved((LOUD, 40))
    answer = trainer.steps(count=10**6, on_exceed="truncate").json()
    assert answer["count"] == whole - 40
    assert other.steps(count=40).status_code == 200
    assert trainer.sound()


def test_beside_a_plan_the_accounts_decide(trainer: Trainer) -> None:
    """A plan covers all of a request or nothing of it: it does not admit a prefix."""
    trainer.reserved((LOUD, 5))
    free = trainer.read()["steps_remaining"]
    answer = trainer.steps(count=10**6, on_exceed="truncate").json()
    assert (answer["reservation"], answer["count"]) == (None, free)
    assert trainer.path()[-1].held == trainer.price((LOUD, 5))
    assert trainer.steps(count=5).json()["reservation"] is not None
    assert trainer.sound()
