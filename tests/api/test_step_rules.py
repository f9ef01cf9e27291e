"""Rules of admission over HTTP, a row each: which request is a repeat, and which one is refused for what was before."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.api.trainer import HUGE, LOUD, QUIET, Trainer, counted, hired, is_refused

FURNISHED = {"trainer": hired}
NAMED = {"X_Request_Id": "mine"}

Asked = dict[str, Any] | str
"""Steps that are asked for, or an action on the run; `opened N` is an attempt that begins with step N."""

FOUR: dict[str, Any] = {"first_step": 0, "count": 4}
VAST: dict[str, Any] = {"count": 10**6}
CUT: dict[str, Any] = VAST | {"first_step": 0, "on_exceed": "truncate"}
NOTHING: dict[str, Any] = {"event": HUGE, "count": 2, "on_exceed": "truncate"}
TOLD: dict[str, Any] = {"first_step": 0, "count": 3, "mode": "report"}


def keyed(body: dict[str, Any], key: str = "k-1") -> dict[str, Any]:
    return body | {"key": key}


def ask(trainer: Trainer, asked: Asked) -> Any:  # noqa: ANN401 - a reply of the test client
    """Send a request; those for steps bear the same request id."""
    if isinstance(asked, str):
        action, _, step = asked.partition(" ")
        body = {"first_step": int(step)} if step else None
        return trainer.act("attempts" if action == "opened" else action, body)
    query = "?dry_run=true" if asked.get("dry_run") else ""
    headers = NAMED | ({"Idempotency_Key": asked["key"]} if "key" in asked else {})
    sent = {name: value for name, value in asked.items() if name not in {"key", "dry_run"}}
    return trainer.ledger.post(f"/v1/runs/{trainer.run}/steps{query}", sent, "trainer", **headers)


REPEATS: dict[str, tuple[list[Asked], dict[str, Any]]] = {
    "the first of several": ([FOUR, {"first_step": 4}], FOUR),
    "steps whose number was left out": ([{"count": 4}], FOUR),
    "the default event, spelled out": ([FOUR], FOUR | {"event": LOUD}),
    "one item for a count": ([FOUR], {"first_step": 0, "events": counted((LOUD, 4))}),
    "a key, once more was taken": ([keyed({"count": 4}), {"count": 3}], keyed({"count": 4})),
    "a key and the number": ([keyed({"count": 4})], keyed(FOUR)),
    "a new key for old steps": ([keyed(FOUR)], keyed(FOUR, "k-2")),
    "no key for old steps": ([keyed(FOUR)], FOUR),
    "a refusal, once more was taken": ([keyed(VAST), {"count": 2}], keyed(VAST)),
    "a refusal of a paused run": ([keyed(VAST), "pause"], keyed(VAST)),
    "a truncated request with its key": ([keyed(CUT)], keyed(CUT)),
    "a truncation to nothing": ([keyed(NOTHING)], keyed(NOTHING)),
    "a report": ([TOLD], TOLD),
    "a report over the limit": ([keyed(TOLD | {"count": 1000})], TOLD | {"count": 1000}),
    "steps of a paused run": ([FOUR, "pause"], FOUR),
    "steps of an aborted run": ([keyed(FOUR), "abort"], keyed(FOUR)),
    "steps of a superseded attempt": ([FOUR, "opened 0"], FOUR | {"attempt": 1}),
    "a key of a superseded attempt": ([keyed(FOUR), "opened 0"], keyed(FOUR | {"attempt": 1})),
    "a refusal of a superseded attempt": ([keyed(VAST), "opened 0"], keyed(VAST)),
    "steps of the next attempt": (["opened 0", FOUR | {"attempt": 2}], FOUR | {"attempt": 2}),
}


@pytest.mark.parametrize("name", REPEATS)
def test_repeat_gets_the_first_answer_and_changes_nothing(trainer: Trainer, name: str) -> None:
    before, repeat = REPEATS[name]
    answers = [ask(trainer, each) for each in before]
    first = next(answer for answer, asked in zip(answers, before, strict=True) if isinstance(asked, dict))
    assert first.status_code in {200, 403}
    assert "idempotent-replayed" not in first.headers
    rows = trainer.rows()
    again = ask(trainer, repeat)
    assert (again.status_code, again.content) == (first.status_code, first.content)
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["content-type"] == first.headers["content-type"]
    preview = ask(trainer, repeat | {"dry_run": True})
    assert preview.json() == first.json() | {"dry_run": True}
    assert trainer.rows() == rows


CONFLICT, GAP, REUSED = (409, "sequence_conflict"), (409, "sequence_gap"), (422, "idempotency_key_reused")
SUPERSEDED, STATE = (412, "attempt_superseded"), (409, "run_state_conflict")
NEXT = {"next_step": 4}
ZERO: dict[str, Any] = {"first_step": 0}
THINGS = "`event`, `events` or `on_exceed`"
ONE = "Step 0 was admitted before, {}. The next step is 1."
PART = "Step {} was admitted before, as part of another request{}. The next step is 4."
UNNAMED = 'The request named no `attempt`, which means 1; the current one is 2. Its trainer sends "attempt": 2.'
REFUSED: list[tuple[list[Asked], dict[str, Any], tuple[int, str], dict[str, Any]]] = [
    ([FOUR], FOUR | {"count": 3}, CONFLICT, NEXT | {"detail": PART.format(0, " (steps 0 to 3)")}),
    ([FOUR], FOUR | {"count": 5}, CONFLICT, NEXT | {"detail": PART.format(0, " (steps 0 to 3)")}),
    ([FOUR], FOUR | {"event": QUIET}, CONFLICT, NEXT),
    ([FOUR], {"first_step": 1}, CONFLICT, NEXT | {"detail": PART.format(1, "")}),
    ([FOUR], {"first_step": 0, "events": counted((LOUD, 2), (LOUD, 2))}, CONFLICT, NEXT),
    ([FOUR], keyed(FOUR | {"count": 3}, "fresh"), CONFLICT, NEXT),
    ([ZERO], ZERO | {"event": QUIET}, CONFLICT, {"detail": ONE.format(f"with another {THINGS}")}),
    ([ZERO], ZERO | {"mode": "report"}, CONFLICT, {"detail": ONE.format("in mode `authorize`")}),
    ([CUT], CUT | {"on_exceed": "refuse"}, CONFLICT, {}),
    ([TOLD], TOLD | {"mode": "authorize"}, CONFLICT, {}),
    ([FOUR], {"first_step": 5}, GAP, {"expected_step": 4}),
    ([TOLD], TOLD | {"first_step": 4}, GAP, {"expected_step": 3}),
    ([keyed({"count": 4})], keyed({"count": 5}), REUSED, {}),
    ([keyed({"count": 4})], keyed({"count": 4, "first_step": 4}), REUSED, {}),
    ([keyed(VAST)], keyed({"count": 1, "first_step": 0}), REUSED, {}),
    ([keyed(CUT)], keyed(CUT | {"count": 10**6 + 1}), REUSED, {}),
    ([keyed(TOLD)], keyed(TOLD | {"mode": "authorize"}), REUSED, {}),
    ([keyed(FOUR), "opened 0"], keyed(FOUR | {"attempt": 2}), REUSED, {}),
    ([FOUR, "opened 2"], {}, SUPERSEDED, {"attempt": 1, "current_attempt": 2, "detail": UNNAMED}),
    ([FOUR, "opened 2"], {"attempt": 3}, SUPERSEDED, {"attempt": 3, "current_attempt": 2}),
    ([FOUR, "opened 2"], {"first_step": 2, "attempt": 1}, SUPERSEDED, {"attempt": 1}),
    ([FOUR, "opened 2"], {"first_step": 4, "mode": "report"}, SUPERSEDED, {"current_attempt": 2}),
    ([FOUR, "opened 2"], FOUR | {"count": 3}, SUPERSEDED, {"current_attempt": 2}),
    ([FOUR, "opened 2"], {"first_step": 4, "attempt": 2}, GAP, {"expected_step": 2}),
    ([FOUR, "opened 2"], FOUR | {"attempt": 2}, CONFLICT, {"next_step": 2}),
    (["pause"], keyed({}), STATE, {"run_status": "paused"}),
    (["complete"], {"first_step": 9}, STATE, {"run_status": "completed"}),
    (["abort"], VAST, STATE, {"run_status": "aborted"}),
    ([TOLD | {"count": 1000}], {}, STATE, {"run_status": "overdrawn"}),
    (["opened 0", "pause"], {"attempt": 2}, STATE, {"run_status": "paused"}),
]


@pytest.mark.parametrize(("before", "asked", "problem", "facts"), REFUSED, ids=map(str, range(len(REFUSED))))
def test_request_that_contradicts_an_earlier_one_is_refused_and_changes_nothing(
    trainer: Trainer, before: list[Asked], asked: dict[str, Any], problem: tuple[int, str], facts: dict[str, Any]
) -> None:
    for each in before:
        assert ask(trainer, each).is_success or each == keyed(VAST)
    rows = trainer.rows()
    for dry_run in (True, False):
        reply = ask(trainer, asked | {"dry_run": dry_run})
        answer = is_refused(reply, *problem)
        assert {name: answer[name] for name in facts} == facts
        assert "idempotent-replayed" not in reply.headers
    assert trainer.rows() == rows


@pytest.mark.parametrize("key", [None, "k-2"])
def test_refused_request_without_its_key_is_decided_again(trainer: Trainer, key: str | None) -> None:
    first, second = (ask(trainer, VAST | ({} if each is None else {"key": each})) for each in ("k-1", key))
    assert (second.status_code, second.content) == (403, first.content)
    assert "idempotent-replayed" not in second.headers
    assert [point["decision"] for point in trainer.history()] == ["refused", "refused"]


def test_key_of_another_run_is_refused(trainer: Trainer) -> None:
    assert trainer.steps(count=4, key="k-1").status_code == 200
    other = Trainer(trainer.ledger, trainer.ledger.run(event=LOUD))
    is_refused(other.steps(count=4, key="k-1"), *REUSED)


def test_key_of_a_preview_or_of_a_request_that_failed_is_not_used_up(trainer: Trainer) -> None:
    assert trainer.steps(count=4, key="k-1", dry_run=True).status_code == 200
    is_refused(trainer.steps(first_step=9, key="k-1"), *GAP)
    trainer.act("pause")
    is_refused(trainer.steps(key="k-1"), *STATE)
    trainer.act("resume")
    reply = trainer.steps(count=5, key="k-1")
    assert (reply.status_code, reply.json()["count"]) == (200, 5)
    assert "idempotent-replayed" not in reply.headers


@pytest.mark.both_databases
@pytest.mark.parametrize("asked", [FOUR, keyed(VAST)], ids=["number", "refusal"])
def test_sixteen_equal_requests_at_once_are_decided_once(trainer: Trainer, asked: dict[str, Any]) -> None:
    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda _: ask(trainer, asked), range(16)))
    assert len({(reply.status_code, reply.content) for reply in replies}) == 1
    assert sum("idempotent-replayed" in reply.headers for reply in replies) == 15
    assert len(trainer.history()) == 1
