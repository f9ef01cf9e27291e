"""Each step interval and each key has one effect and one outcome, for ever."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from tests.api.conftest import SeededLedger
from tests.conftest import SAMPLED

NOISY = {"type": "gaussian", "noise_multiplier": 90.0}


def _post(
    seeded: SeededLedger, body: dict[str, Any], key: str | None = None, run: str | None = None
) -> httpx2.Response:
    headers = {"X_Request_Id": "mine"} | ({} if key is None else {"Idempotency_Key": key})
    return seeded.ledger.post(f"/v1/runs/{run or seeded.run}/steps", body, "trainer", **headers)


def _is_replay(seeded: SeededLedger, first: httpx2.Response, body: dict[str, Any], key: str | None = None) -> None:
    before = seeded.rows()
    again = _post(seeded, body, key)
    assert (again.status_code, again.content) == (first.status_code, first.content)
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["content-type"] == first.headers["content-type"]
    assert seeded.rows() == before


def _is_refused(seeded: SeededLedger, reply_code: tuple[int, str], body: dict[str, Any], key: str | None = None) -> Any:  # noqa: ANN401 - JSON is anything
    before = seeded.rows()
    reply = _post(seeded, body, key)
    assert (reply.status_code, reply.json()["code"]) == reply_code, reply.text
    assert "idempotent-replayed" not in reply.headers
    assert seeded.rows() == before
    return reply.json()


def test_steps_that_were_admitted_get_the_first_answer_again(seeded: SeededLedger) -> None:
    first = _post(seeded, {"count": 4, "first_step": 1})
    assert "idempotent-replayed" not in first.headers
    _is_replay(seeded, first, {"count": 4, "first_step": 1})
    second = _post(seeded, {"count": 2, "first_step": 5})
    _is_replay(seeded, first, {"count": 4, "first_step": 1})
    _is_replay(seeded, second, {"count": 2, "first_step": 5})


def test_admitted_steps_are_known_by_their_number_though_it_was_left_out(seeded: SeededLedger) -> None:
    first = _post(seeded, {"count": 4})
    assert first.json()["first_step"] == 1
    _is_replay(seeded, first, {"count": 4, "first_step": 1})


@pytest.mark.parametrize(
    "body",
    [
        {"count": 4, "event": SAMPLED},
        {"events": [{"event": SAMPLED, "count": 4}]},
        {"count": 4, "mode": "authorize"},
        {"count": 4, "event": None, "events": None},
    ],
)
def test_the_same_content_may_be_spelled_differently(seeded: SeededLedger, body: dict[str, Any]) -> None:
    first = _post(seeded, {"count": 4, "first_step": 1})
    _is_replay(seeded, first, body | {"first_step": 1})


def test_a_request_without_numbers_and_key_is_a_new_one_each_time(seeded: SeededLedger) -> None:
    steps = [_post(seeded, {}).json()["first_step"] for _ in range(3)]
    assert steps == [1, 2, 3]


def test_a_key_gets_the_first_answer_again_whatever_happened_since(seeded: SeededLedger) -> None:
    first = _post(seeded, {"count": 4}, "k-1")
    _is_replay(seeded, first, {"count": 4}, "k-1")
    _post(seeded, {"count": 3})
    _is_replay(seeded, first, {"count": 4}, "k-1")
    _is_replay(seeded, first, {"count": 4, "first_step": 1}, "k-1")


def test_a_new_key_does_not_charge_admitted_steps_again(seeded: SeededLedger) -> None:
    first = _post(seeded, {"count": 4, "first_step": 1}, "k-1")
    _is_replay(seeded, first, {"count": 4, "first_step": 1}, "k-2")
    _is_replay(seeded, first, {"count": 4, "first_step": 1})


@pytest.mark.parametrize(
    "body",
    [
        {"count": 3, "first_step": 1},
        {"count": 5, "first_step": 1},
        {"count": 4, "first_step": 1, "event": NOISY},
        {"count": 1, "first_step": 2},
        {"count": 3, "first_step": 2},
        {"count": 4, "first_step": 4},
        {"count": 2, "first_step": 0},
        {"events": [{"event": SAMPLED, "count": 2}, {"event": SAMPLED, "count": 2}], "first_step": 1},
    ],
)
def test_admitted_steps_with_another_content_are_a_conflict(seeded: SeededLedger, body: dict[str, Any]) -> None:
    _post(seeded, {"count": 4, "first_step": 1})
    answer = _is_refused(seeded, (409, "sequence_conflict"), body)
    assert answer["next_step"] == 5
    _is_refused(seeded, (409, "sequence_conflict"), body, "fresh-key")


def test_a_conflict_says_which_steps_were_admitted_where_they_begin(seeded: SeededLedger) -> None:
    _post(seeded, {"count": 4, "first_step": 1})
    begun = _is_refused(seeded, (409, "sequence_conflict"), {"count": 3, "first_step": 1})
    assert begun["detail"] == (
        "Step 1 was admitted before, as part of another request (steps 1 to 4). The next step is 5."
    )
    amid = _is_refused(seeded, (409, "sequence_conflict"), {"count": 3, "first_step": 2})
    assert amid["detail"] == "Step 2 was admitted before, as part of another request. The next step is 5."
    _post(seeded, {"first_step": 5})
    alone = _is_refused(seeded, (409, "sequence_conflict"), {"count": 3, "first_step": 5})
    assert "another request (that step alone). The next step is 6." in alone["detail"]


def test_a_conflict_of_equal_counts_says_what_may_differ(seeded: SeededLedger) -> None:
    _post(seeded, {"first_step": 1})
    loud = _is_refused(seeded, (409, "sequence_conflict"), {"first_step": 1, "event": NOISY})
    assert loud["detail"] == (
        "Step 1 was admitted before, with another `event`, `events` or `on_exceed`. The next step is 2."
    )
    reported = _is_refused(seeded, (409, "sequence_conflict"), {"first_step": 1, "mode": "report"})
    assert reported["detail"] == "Step 1 was admitted before, in mode `authorize`. The next step is 2."


@pytest.mark.parametrize("first_step", [2, 3, 1000, 2**53])
def test_a_gap_is_told_with_the_step_that_is_expected(seeded: SeededLedger, first_step: int) -> None:
    answer = _is_refused(seeded, (409, "sequence_gap"), {"first_step": first_step}, "k-1")
    assert answer["expected_step"] == 1
    assert _post(seeded, {"first_step": 1}, "k-1").status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"count": 5},
        {"count": 4, "event": NOISY},
        {"count": 4, "first_step": 5},
        {"count": 4, "first_step": 0},
        {"events": [{"event": SAMPLED, "count": 4}, {"event": SAMPLED}]},
    ],
)
def test_a_key_with_another_content_is_refused(seeded: SeededLedger, body: dict[str, Any]) -> None:
    _post(seeded, {"count": 4}, "k-1")
    _is_refused(seeded, (422, "idempotency_key_reused"), body, "k-1")


def test_a_key_belongs_to_one_run(seeded: SeededLedger) -> None:
    _post(seeded, {"count": 4}, "k-1")
    other = SeededLedger(seeded.ledger, seeded.population, seeded.budget, seeded.ledger.run())
    _is_refused(other, (422, "idempotency_key_reused"), {"count": 4}, "k-1")


def test_a_refusal_is_pinned_by_its_key_for_ever(seeded: SeededLedger) -> None:
    body = {"count": 10**6, "first_step": 1}
    refused = _post(seeded, body, "k-1")
    assert refused.status_code == 403
    _is_replay(seeded, refused, body, "k-1")
    assert _post(seeded, {"count": 2}).status_code == 200
    _is_replay(seeded, refused, body, "k-1")
    _is_refused(seeded, (422, "idempotency_key_reused"), {"count": 1, "first_step": 1}, "k-1")


@pytest.mark.parametrize("key", [None, "k-2"])
def test_a_refused_request_with_a_new_key_is_a_new_question(seeded: SeededLedger, key: str | None) -> None:
    body = {"count": 10**6, "first_step": 1}
    first = _post(seeded, body, "k-1")
    second = _post(seeded, body, key)
    assert (second.status_code, second.content) == (403, first.content)
    assert "idempotent-replayed" not in second.headers
    points = seeded.ledger.get(f"/v1/runs/{seeded.run}/history").json()["points"]
    assert [point["decision"] for point in points] == ["admitted", "refused", "refused"]


def test_fewer_steps_are_admitted_in_the_place_of_refused_ones(seeded: SeededLedger) -> None:
    refused = _post(seeded, {"count": 10**6, "first_step": 1}).json()
    fitting = refused["max_count_that_fits"]
    admitted = _post(seeded, {"count": fitting, "first_step": 1})
    assert (admitted.status_code, admitted.json()["next_step"]) == (200, fitting + 1)


@pytest.mark.both_databases
@pytest.mark.parametrize(
    ("body", "key", "status"),
    [
        ({"count": 3, "first_step": 1}, None, 200),
        ({"count": 3}, "k-1", 200),
        ({"count": 3, "first_step": 1}, "k-1", 200),
        ({"count": 10**6}, "k-1", 403),
    ],
)
def test_sixteen_at_once_with_the_same_request_are_decided_once(
    seeded: SeededLedger, body: dict[str, Any], key: str | None, status: int
) -> None:
    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda _: _post(seeded, body, key), range(16)))
    assert {reply.status_code for reply in replies} == {status}
    assert len({reply.content for reply in replies}) == 1
    assert sum("idempotent-replayed" in reply.headers for reply in replies) == 15
    history = seeded.ledger.get(f"/v1/runs/{seeded.run}/history").json()
    assert history["decisions"] == 2


def test_sixteen_at_once_without_numbers_and_keys_follow_one_another(seeded: SeededLedger) -> None:
    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda _: _post(seeded, {"count": 2}), range(16)))
    assert sorted(reply.json()["first_step"] for reply in replies) == list(range(1, 33, 2))
    remaining = sorted(reply.json()["steps_remaining"] for reply in replies)
    assert remaining == list(range(remaining[0], remaining[0] + 32, 2))


def test_a_preview_of_admitted_steps_is_the_first_answer(seeded: SeededLedger) -> None:
    first = _post(seeded, {"count": 4, "first_step": 1}).json()
    before = seeded.rows()
    path = f"/v1/runs/{seeded.run}/steps?dry_run=true"
    again = seeded.ledger.post(path, {"count": 4, "first_step": 1}, "trainer")
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json() == first | {"dry_run": True}
    conflict = seeded.ledger.post(path, {"count": 3, "first_step": 1}, "trainer")
    gap = seeded.ledger.post(path, {"count": 3, "first_step": 9}, "trainer")
    assert [reply.json()["code"] for reply in (conflict, gap)] == ["sequence_conflict", "sequence_gap"]
    assert seeded.rows() == before


def test_a_preview_does_not_use_up_its_key(seeded: SeededLedger) -> None:
    path = f"/v1/runs/{seeded.run}/steps?dry_run=true"
    seeded.ledger.post(path, {"count": 4}, "trainer", Idempotency_Key="k-1")
    reply = _post(seeded, {"count": 5}, "k-1")
    assert (reply.status_code, reply.json()["count"]) == (200, 5)
    assert "idempotent-replayed" not in reply.headers
