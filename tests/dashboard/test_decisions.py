"""Decisions: found by every filter, refusals explained, one by one to the link of the chain."""

import re
from datetime import UTC, datetime, timedelta

from tests.conftest import SAMPLED, Ledger
from tests.dashboard.page_visitor import Page, scoped_visitor, text_of, visitor, without_breaks
from tests.dashboard.sample_hospital import Hospital, at_past

LAPLACE = {"type": "laplace", "noise_multiplier": 10.0}


def shown(page: Page) -> list[str]:
    """The addresses of the decisions in a list."""
    return list(dict.fromkeys(link for link in page.links("/decisions/") if re.search(r"/\d+$", link)))


def test_refusal_is_found_with_its_reason_and_alternatives(sample: Ledger, hospital: Hospital) -> None:
    found = visitor(sample).open("/decisions?decision=refused&account=stroke-registry")
    first = " ".join(found.rows("list")[:2])
    assert re.search("9 000 .*None of the 9,000 requested steps fits. With a noise multiplier of", first), first
    page = visitor(sample).open(shown(found)[0])
    assert "stroke-registry/outcome-models/transformer" in text_of(next(page.root.iter("h1")))
    query = "account=stroke-registry&decision=refused&limit=1"
    [answer] = sample.get(f"/v1/decisions?{query}").json()["items"]
    for said in (
        answer["refusal"]["detail"].partition(" refused: ")[2],
        answer["hash"],
        answer["request_id"],
        answer["actor"],
    ):
        assert said in page.text
    [more] = [each for each in answer["refusal"]["alternatives"] if each["type"] == "more_noise"]
    assert any(f"{more['noise_multiplier']:g}" in text_of(each) for each in page.root.iter("li"))
    assert '"noise_multiplier": 0.6' in " ".join(each.text or "" for each in page.root.iter("pre"))
    before = f"/decisions/{hospital.refused}/{answer['position'] - 1}"
    assert f"Decision {answer['position'] - 1} " in visitor(sample).open(before).words
    assert before in page.links()


def test_decision_of_a_plan_is_explained_by_its_steps(ledger: Ledger) -> None:
    ledger.population()
    event = {"type": "gaussian", "noise_multiplier": 60.0}
    ledger.budget(planned=[{"event": event}])
    run = ledger.run(event=event)
    assert ledger.post(f"/v1/runs/{run}/steps", {"count": 10**6}, "trainer").status_code == 403
    words = visitor(ledger).open(f"/decisions/{run}/0").words
    assert "Decided by the plan, of which" in words
    assert "Used before 0.0 %" in words
    assert "nats" not in words


def test_pages_follow_each_other_without_gap(sample: Ledger) -> None:
    person = visitor(sample)
    page = person.open("/decisions?since=2020-01-01")
    seen = shown(page)
    while older := [each.get("href", "") for each in page.root.iter("a") if each.get("rel") == "next"]:
        page = person.open(older[0])
        seen += shown(page)
    items = sample.get("/v1/decisions?limit=200").json()["items"]
    assert seen == [f"/decisions/{each['run']}/{each['position']}" for each in items]
    [newest] = [each.get("href", "") for each in page.root.iter("a") if each.get("rel") == "first"]
    assert "after=" not in newest
    assert "since=2020-01-01" in newest


def test_every_filter_of_api_filters_the_page(sample: Ledger, hospital: Hospital) -> None:
    items = sample.get("/v1/decisions?limit=200").json()["items"]
    middle = items[len(items) // 2]
    at, day = middle["created_at"].replace("+", "%2B"), middle["created_at"][:10]
    for asked, same in (
        (f"run={hospital.ids['imaging/denoising/baseline']}", ""),
        ("account=imaging/denoising", ""),
        (f"account={hospital.ids['imaging/denoising/baseline']}", ""),
        ("decision=reported", ""),
        (f"actor={middle['actor']}&decision=refused", ""),
        (f"since={at}&decision=admitted", ""),
        (f"until={at}", ""),
        (f"until={day}", f"until={day}T00:00:00Z"),
        (f"until={day}T00:00", f"until={day}T00:00:00Z"),
        (f"until={day}T02:00%2B02:00", f"until={day}T00:00:00Z"),
    ):
        expected = sample.get(f"/v1/decisions?{same or asked}&limit=50").json()["items"]
        found = shown(visitor(sample).open(f"/decisions?{asked}"))
        assert found == [f"/decisions/{each['run']}/{each['position']}" for each in expected], asked
        assert expected


def test_wrong_filter_is_named_at_its_field_and_empty_list_says_why(sample: Ledger) -> None:
    person = visitor(sample)
    for query, field, words in (
        ("account=nobody/here", "account", "nobody"),
        ("run=run_nowhere", "run", "run_nowhere"),
        ("decision=perhaps", "decision", "admitted"),
        ("since=yesterday", "since", "write a moment"),
        ("since=20261125", "since", "write a moment"),
        ("since=2026-11-22&until=2026-11-21", "until", "lies before `since`"),
        (f"actor={'x' * 5000}", "actor", "at most"),
    ):
        page = person.open(f"/decisions?{query}")
        assert page.status == 200
        assert words in page.part(f"{field}-fault")
        assert page.reply.text.count('aria-invalid="true"') == (field != "decision")
        assert "Invalid search" in page.words
    assert "No matching decisions" in visitor(sample).open("/decisions?actor=key_nobody").words
    assert "No decisions yet" in visitor(sample, "viewer", "clinic").open("/decisions").words


def test_decision_out_of_reach_is_not_shown(own_sample: Ledger, hospital: Hospital) -> None:
    elsewhere = f"/decisions/{hospital.refused}/0"
    bound = scoped_visitor(own_sample, "viewer", hospital.ids["mimic"])
    listed = bound.open("/decisions")
    assert shown(listed)
    assert "stroke-registry" not in listed.reply.text
    assert bound.open(elsewhere).status == 403
    assert "lies elsewhere" in bound.open("/decisions?account=imaging").words
    assert visitor(own_sample, "viewer", "clinic").open(elsewhere).status == 404
    run, person = f"/decisions/{hospital.refused}", visitor(own_sample)
    paths = (elsewhere, f"{run}/999999", f"{run}/{10**30}")
    assert [person.open(path).status for path in paths] == [200, 404, 422]
    assert "is not a cursor" in person.open("/decisions?after=nonsense").words


def test_refusal_by_replica_with_late_clock_is_shown_within_a_minute(ledger: Ledger) -> None:
    ledger.population()
    ledger.budget()
    run, other = ledger.run(), ledger.run(name="other")

    def refuse(run_id: str) -> None:
        assert ledger.post(f"/v1/runs/{run_id}/steps", {"count": 77_000_000}, "trainer").status_code == 403

    with at_past(datetime(2026, 11, 20, 12, 0, 30, tzinfo=UTC)) as clock:
        viewer = visitor(ledger)
        refuse(run)
        tag = viewer.open("/decisions", X_Part="page").reply.headers["etag"]
        clock.at -= timedelta(seconds=5)
        refuse(other)
        clock.at += timedelta(minutes=1)
        found = viewer.open("/decisions", X_Part="page", If_None_Match=tag).reply
    assert found.status_code == 200
    assert f"/decisions/{other}/0" in found.text


def test_lost_steps_are_shown_where_they_were_decided_and_by_their_account(ledger: Ledger) -> None:
    ledger.population(limit={"epsilon": 3.0, "delta": 1e-5})
    team = str(ledger.budget(limit={"epsilon": 3.0, "delta": 1e-5})["id"])
    release = ledger.run(event=LAPLACE, expected_steps=1)
    assert ledger.post(f"/v1/runs/{release}/steps", {"count": 1}, "trainer").is_success
    gaussian = {"type": "gaussian", "noise_multiplier": 0.7}
    event = {"type": "poisson_sampled", "sampling_probability": 0.001, "event": gaussian}
    training = ledger.run(event=event, expected_steps=40_000)
    _, lost = ledger.post(f"/v1/runs/{training}/steps", {"count": 1}, "trainer").json()["warnings"]
    assert lost.startswith("The filter of mimic/icu-team is not tuned")
    for path in (f"/decisions/{training}/0", f"/accounts/{team}"):
        assert lost in without_breaks(visitor(ledger).open(path).text)


def test_cause_of_an_ended_plan_is_shown_where_it_was_decided(ledger: Ledger) -> None:
    ledger.population(limit={"epsilon": 3.0, "delta": 1e-5}, planned=[{"event": SAMPLED}])
    ledger.budget(limit={"epsilon": 3.0, "delta": 1e-5})
    run = ledger.run()
    for event in (SAMPLED, LAPLACE):
        assert ledger.post(f"/v1/runs/{run}/steps", {"event": event}, "trainer").is_success
    words = visitor(ledger).open(f"/decisions/{run}/1").words
    assert "These steps ended the plan of mimic" in words
    assert "its type is laplace, planned poisson_sampled" in words
