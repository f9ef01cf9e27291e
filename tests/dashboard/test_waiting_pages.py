"""Who waits for what and why, on the pages of accounts and runs, and how a budget is shared out."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from app.dashboard.formatting import free
from app.ledger.accounts import AccountKind
from app.ledger.availability import Available
from app.ledger.filters import Limit
from app.service.queries.account_status import AccountStatus, Severity
from app.service.scheduling.grants import expire_waiting, grant_waiting
from tests.clocks import stand_at
from tests.conftest import Ledger
from tests.dashboard.html_reader import visit, words
from tests.login_helpers import signed_in
from tests.waiting_plans import OVER_TEN_DAYS, allocate, ask, later

OFFICER = "privacy_officer"


@pytest.fixture
def shared(ledger: Ledger) -> str:
    """A population of which a tenth is unlocked, with two budgets."""
    population = str(ledger.population(limit={"epsilon": 3.0, "delta": 1e-5})["id"])
    for name in ("icu-team", "er-team"):
        ledger.budget(name, limit={"epsilon": 3.0, "delta": 1e-5})
    shares = [{"account": "mimic/icu-team", "minimum": 0.25, "maximum": 0.6, "weight": 2.0}]
    allocate(ledger, population, rule="dominant_share", unlock=OVER_TEN_DAYS, shares=shares)
    return population


def part(text: str, start: str, end: str) -> str:
    return text.partition(start)[2].partition(end)[0]


def line(ledger: Ledger, account: str, role: str = "viewer") -> str:
    """What the page of an account says of the plans that wait."""
    return part(words(visit(ledger, f"/accounts/{account}", signed_in(ledger, role))), "Plans that wait", "Allocation")


def test_the_line_says_who_waits_for_what_and_why(ledger: Ledger, shared: str) -> None:
    first = ask(ledger, "first", 800, owner="Dr. Osei, 4410").json()
    ask(ledger, "second", 900)
    found = line(ledger, shared)
    queue = ledger.get(f"/v1/accounts/{shared}/queue").json()["items"]
    assert queue[0]["run"] == first["id"]
    assert re.search(r"1 first mimic/icu-team Dr\. Osei, 4410 800 mimic : a part of its limit is locked", found), found
    assert re.search(r"2 second mimic/icu-team 900", found), found
    [short] = queue[0]["reservation"]["waiting"]["lacks"]
    assert f"Order {short['order']:.4g}: needs {short['requested']:.3g}, has {short['available']:.3g}" in found
    assert "who asks for the smallest share" in found
    estimated = queue[0]["reservation"]["waiting"]["estimated_at"]
    assert f"{estimated[:10]} {estimated[11:16]} UTC" in found
    assert f'href="/runs/{first["id"]}"' in visit(ledger, f"/accounts/{shared}", signed_in(ledger)).text


def test_whom_to_call_is_the_owner_of_the_run_or_of_what_is_above_it(ledger: Ledger, shared: str) -> None:
    ask(ledger, "first", 800)
    called = []
    for kind, account, owner in (("populations", shared, "The board"), ("budgets", _team(ledger), "Dr. Osei")):
        assert ledger.patch(f"/v1/{kind}/{account}", {"owner": owner}).status_code == 200
        called.append(re.findall(r"mimic/icu-team (The board|Dr\. Osei) 800", line(ledger, shared)))
    assert called == [["The board"], ["Dr. Osei"]]


def test_a_plan_with_a_priority_is_first_and_only_those_with_the_right_change_the_line(
    ledger: Ledger, shared: str
) -> None:
    ask(ledger, "first", 800)
    second = ask(ledger, "second", 900).json()["waiting_reservation"]
    moved = {"priority": 7, "reason": "The study ends."}
    assert ledger.post(f"/v1/reservations/{second}/prioritize", moved, OFFICER).status_code == 200
    found = line(ledger, shared)
    assert found.index("1 second") < found.index("2 first")
    assert re.search(r"second .* 7 ", found)
    buttons = {
        role: (f"{second}/cancel" in text, f"{second}/prioritize" in text)
        for role in ("viewer", "trainer", OFFICER)
        for text in [visit(ledger, f"/accounts/{shared}", signed_in(ledger, role)).text]
    }
    assert buttons == {"viewer": (False, False), "trainer": (True, False), OFFICER: (True, True)}


def test_without_waiting_plans_and_allocation_a_page_says_so_in_a_line_each(ledger: Ledger) -> None:
    population = str(ledger.population()["id"])
    budget = str(ledger.budget()["id"])
    for account in (population, budget):
        text = words(visit(ledger, f"/accounts/{account}", signed_in(ledger)))
        assert "Plans that wait No plan waits." in text
        assert "It has no allocation: all of its limit is usable, and steps need no plan." in text
        assert "plans only" not in text
    assert "waiting" not in words(visit(ledger, "/", signed_in(ledger))).partition("Unfinished")[0]


def test_the_allocation_is_told_with_what_is_usable_and_promised(ledger: Ledger, shared: str) -> None:
    assert ask(ledger, "small", 20).json()["status"] == "active"
    text = words(visit(ledger, f"/accounts/{shared}", signed_in(ledger)))
    found = part(text, "Allocation Admits", "Would another run fit?")
    assert "plans only steps without a plan are refused" in found
    assert "Aging 7 days" in found
    assert re.search(r"Unlocked 10\.0\s%", found)
    assert re.search(r"icu-team 25\.0\s% 60\.0\s% 2 (?!0\.000)\d\.\d{3}", found), found
    taken = ledger.get(f"/v1/populations/{shared}").json()
    assert f"Free now {free(taken['available']['epsilon'])}" in found
    own = words(visit(ledger, f"/accounts/{_team(ledger)}", signed_in(ledger)))
    assert "more is locked in mimic" in own


def test_what_is_locked_is_not_available_and_not_used(ledger: Ledger, shared: str) -> None:
    left = ledger.get(f"/v1/populations/{shared}").json()["available"]["epsilon"]
    assert 0 < left < 0.5
    row = part(words(visit(ledger, "/", signed_in(ledger))), "mimic", "icu-team")
    assert f"{free(left)} free: more is locked" in row
    assert " OK" in row
    assert 'class="locked"' in visit(ledger, "/", signed_in(ledger)).text
    assert ask(ledger, "nearly-all", 120).json()["status"] == "active"
    row = part(words(visit(ledger, "/", signed_in(ledger))), "mimic", "icu-team")
    assert not re.search("low|half used|exhausted|blocked", row), row


@pytest.mark.parametrize(
    ("now", "unlocked", "severity", "locked"), [(0.0, 3.0, "ok", True), (0.0, 0.05, "exhausted", False)]
)
def test_locked_is_as_urgent_as_what_is_used(now: float, unlocked: float, severity: str, locked: bool) -> None:  # noqa: FBT001
    status = _status(now, unlocked)
    assert (status.severity, status.is_locked, status.free) == (Severity(severity), locked, now)


def _status(now: float, unlocked: float) -> AccountStatus:
    whole = Available(unlocked, "pop_1", "p")
    return AccountStatus(
        *("bud_1", AccountKind.BUDGET, "pop_1", "pop_1", "b", "p/b", 1, datetime.now(UTC), None),
        limit=Limit(3.0, 1e-5),
        epsilon=0.0,
        epsilon_including_reserved=0.0,
        share=0.0,
        available=Available(now, "pop_1", "p", whole),
    )


def test_the_overview_counts_the_plans_that_wait(ledger: Ledger, shared: str) -> None:
    for name in ("first", "second"):
        ask(ledger, name, 800)
    page = visit(ledger, "/", signed_in(ledger))
    rows = re.findall(r'href="/accounts/(\w+)#queue-title">(\d+) waiting', page.text)
    budget = ledger.get("/v1/budgets?path=mimic/icu-team").json()["items"][0]["id"]
    assert sorted(rows) == sorted([(shared, "2"), (budget, "2")])
    assert "2 waiting." in words(page).partition("Unfinished runs")[2]


@pytest.mark.parametrize(
    ("steps", "said"),
    [(10, "It fits"), (800, "It has to wait"), (1_000_000, "It does not fit")],
)
def test_what_if_says_whether_a_plan_would_wait(ledger: Ledger, shared: str, steps: int, said: str) -> None:
    ask(ledger, "first", 800)
    text = words(visit(ledger, f"/accounts/{_team(ledger)}?steps={steps}&noise=1.1&rate=0.01", signed_in(ledger)))
    assert said in text
    assert ("As a plan it would wait at place" in text) == (said == "It has to wait")
    assert shared


def _team(ledger: Ledger) -> str:
    return str(ledger.get("/v1/budgets?path=mimic/icu-team").json()["items"][0]["id"])


def test_what_if_tells_why_a_plan_would_be_refused(ledger: Ledger) -> None:
    ledger.population()
    budget = str(ledger.budget(closes_at=later(1))["id"])
    body = {"policy": {"min_noise_multiplier": 2.0}, "reason": "Less."}
    headers = ledger.headers(OFFICER) | {"If-Match": "*"}
    assert ledger.http.put(f"/v1/accounts/{budget}/policy", json=body, headers=headers).status_code == 200
    text = words(visit(ledger, f"/accounts/{budget}?steps=10&noise=1.1&rate=0.01", signed_in(ledger)))
    assert "As a plan of a new run it would be refused now:" in text


def test_the_page_of_a_run_has_the_place_of_its_plan(ledger: Ledger, shared: str) -> None:
    ask(ledger, "first", 800)
    run = ask(ledger, "second", 900).json()["id"]
    text = words(visit(ledger, f"/runs/{run}", signed_in(ledger, OFFICER)))
    found = part(text, "Its plan waits", "Spending")
    assert "Place 2 of 2" in found
    assert "mimic : a part of its limit is locked" in found
    assert "Cancel" in found
    assert "Status waiting" in text
    assert shared


def test_a_poll_of_a_run_sees_that_others_moved(ledger: Ledger, shared: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = ledger.database.clock.now()
    stand_at(monkeypatch, lambda: now)  # the page says for how long
    run = ask(ledger, "first", 900).json()["id"]
    cookie = signed_in(ledger)
    first = visit(ledger, f"/runs/{run}", cookie, X_Part="page")
    again = visit(ledger, f"/runs/{run}", cookie, X_Part="page", If_None_Match=first.headers["etag"])
    assert again.status_code == 304
    ask(ledger, "second", 700)
    moved = visit(ledger, f"/runs/{run}", cookie, X_Part="page", If_None_Match=first.headers["etag"])
    assert "of 2" in part(words(moved), "Place", "served")
    assert shared


def test_a_granted_plan_is_unclaimed_until_its_trainer_renews_it(ledger: Ledger, shared: str) -> None:
    made = ask(ledger, "first", 800).json()
    allocate(ledger, shared, rule="dominant_share")
    assert grant_waiting(ledger.database) == 1
    cookie = signed_in(ledger)
    text = words(visit(ledger, f"/runs/{made['id']}", cookie))
    assert "that its trainer has not claimed yet" in text
    assert "active unclaimed granted" in text
    renewed = ledger.post(f"/v1/reservations/{made['waiting_reservation']}/renew", None, "trainer")
    assert renewed.status_code == 200, renewed.text
    assert "claimed" not in words(visit(ledger, f"/runs/{made['id']}", cookie))
    said = words(visit(ledger, "/audit?action=reservation.granted", signed_in(ledger, "auditor")))
    assert "granted the waiting plan of mimic/icu-team/first after " in said
    assert "seconds: first is who asks for the smallest share, its score is " in said
    assert "none was before it" in said
    assert shared


def test_a_run_whose_plan_was_not_granted_says_so_everywhere(
    ledger: Ledger, shared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ask(ledger, "first", 1200, wait_until=later(0.01)).json()
    assert made["status"] == "waiting"
    start, cookie = ledger.database.clock.now(), signed_in(ledger, "auditor")
    stand_at(monkeypatch, lambda: start + timedelta(minutes=1))
    assert expire_waiting(ledger.database) == 1
    assert "aborted plan not granted" in words(visit(ledger, f"/runs/{made['id']}", cookie))
    assert "plan not granted" in words(visit(ledger, "/runs?end_reason=not_granted", cookie))
    audit = words(visit(ledger, "/audit", cookie))
    assert "ended the plan of mimic/icu-team/first, which waited in vain" in audit
    assert "aborted the run mimic/icu-team/first: plan not granted" in audit
    assert "let a plan of mimic/icu-team/first wait at place 1, for mimic (locked)" in audit
    assert shared


def test_the_audit_log_tells_what_became_of_waiting_plans(ledger: Ledger, shared: str) -> None:
    first, second = (ask(ledger, name, 800).json()["waiting_reservation"] for name in ("first", "second"))
    ledger.post(f"/v1/reservations/{second}/prioritize", {"priority": -3, "reason": "Later."}, OFFICER)
    ledger.post(f"/v1/reservations/{first}/cancel", {"reason": "Not needed."}, "trainer")
    said = words(visit(ledger, "/audit", signed_in(ledger, "auditor")))
    assert "moved the plan of mimic/icu-team/second from priority 0 to -3" in said
    assert "cancelled the waiting plan of mimic/icu-team/first" in said
    assert "changed the allocation of mimic: it admits plans only, who asks for the smallest share first" in said
    allocate(ledger, shared)
    assert "changed the allocation of mimic: it has none any more" in words(
        visit(ledger, "/audit", signed_in(ledger, "auditor"))
    )


def test_runs_that_wait_are_found(ledger: Ledger, shared: str) -> None:
    ask(ledger, "first", 800)
    ask(ledger, "small", 5)
    text = words(visit(ledger, "/runs?status=waiting", signed_in(ledger))).partition("Matching runs")[2]
    assert "first" in text
    assert "small" not in text
    assert shared
