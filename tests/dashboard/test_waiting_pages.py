"""Reservations that wait, on the pages of accounts and runs, and how a budget is shared out."""

import re
from datetime import timedelta

import pytest

from app.dashboard.formatting import percent
from app.ledger.filter.limits import Limit
from app.ledger.scheduling.account_status import Severity
from app.ledger.scheduling.availability import Available
from app.service.scheduling.grants import expire_waiting, grant_waiting
from tests.clocks import stand_at
from tests.conftest import Ledger
from tests.dashboard.page_visitor import text_of, visitor
from tests.statuses import status_at
from tests.waiting_reservations import OVER_TEN_DAYS, allocate, ask, later

OFFICER = "privacy_officer"


def share_out(ledger: Ledger) -> str:
    """A population of which a tenth is unlocked, with two budgets; its id."""
    population = str(ledger.population(limit={"epsilon": 3.0, "delta": 1e-5})["id"])
    for name in ("icu-team", "er-team"):
        ledger.budget(name, limit={"epsilon": 3.0, "delta": 1e-5})
    shares = [{"account": "mimic/icu-team", "minimum": 0.25, "maximum": 0.6, "weight": 2.0}]
    allocate(ledger, population, rule="smallest_share", unlock=OVER_TEN_DAYS, shares=shares)
    return population


FURNISHED = {"shared": share_out}


@pytest.fixture
def shared(made: str) -> str:
    return made


def team(ledger: Ledger) -> str:
    return str(ledger.get("/v1/budgets?path=mimic/icu-team").json()["items"][0]["id"])


def queue(ledger: Ledger, account: str) -> str:
    """The words of the reservations that wait, on the page of an account."""
    return visitor(ledger).open(f"/accounts/{account}").part("queue")


def row_of(ledger: Ledger) -> str:
    """The line of the population on the overview."""
    return visitor(ledger).open("/").words.partition("mimic")[2].partition("icu-team")[0]


def test_queue_names_reservations_and_what_they_lack(ledger: Ledger, shared: str) -> None:
    first = ask(ledger, "first", 800, owner="Dr. Osei, 4410").json()
    ask(ledger, "second", 900)
    found = queue(ledger, shared)
    waiting = ledger.get(f"/v1/accounts/{shared}/queue").json()["items"]
    assert waiting[0]["run"] == first["id"]
    assert re.search(r"1 first mimic/icu-team Dr\. Osei, 4410 800 mimic : a part of its limit is locked", found), found
    assert re.search(r"2 second mimic/icu-team 900", found), found
    [short] = waiting[0]["reservation"]["waiting"]["lacks"]
    needs, left = (" ".join(percent(short[name]).split()) for name in ("requested", "available"))
    assert f"It needs {needs} of the limit, and {left} is left." in found
    assert "who asks for the smallest share" in found
    estimated = waiting[0]["reservation"]["waiting"]["estimated_at"]
    assert f"{estimated[:10]} {estimated[11:16]} UTC" in found
    page = visitor(ledger).open("/")
    counted = [each.get("href") for each in page.root.iter("a") if text_of(each) == "2 waiting"]
    assert sorted(map(str, counted)) == sorted(f"/accounts/{each}#queue-title" for each in (shared, team(ledger)))
    assert "2 waiting." in page.words.partition("Unfinished runs")[2]
    assert "Steps left – its reservation waits" in visitor(ledger).open(f"/runs/{first['id']}").words  # noqa: RUF001 - a dash
    assert (first["steps_remaining"], first["binding_account"]) == (None, None)
    ask(ledger, "small", 5)
    listed = visitor(ledger).open("/runs?status=waiting").part("list")
    assert ("first" in listed, "small" in listed) == (True, False)
    for kind, account, owner in (("populations", shared, "The board"), ("budgets", team(ledger), "Dr. Osei")):
        assert ledger.patch(f"/v1/{kind}/{account}", {"owner": owner}).status_code == 200
        assert f"2 second mimic/icu-team {owner} 900" in queue(ledger, shared), "of the account above"


def test_prioritized_reservation_is_first_and_buttons_depend_on_role(ledger: Ledger, shared: str) -> None:
    ask(ledger, "first", 800)
    second = ask(ledger, "second", 900).json()["waiting_reservation"]
    moved = {"priority": 7, "reason": "The study ends."}
    assert ledger.post(f"/v1/reservations/{second}/prioritize", moved, OFFICER).status_code == 200
    assert re.search("1 second .* 7 .*2 first", queue(ledger, shared))
    buttons = {
        role: (f"{second}/cancel" in text, f"{second}/prioritize" in text)
        for role in ("viewer", "trainer", OFFICER)
        for text in [visitor(ledger, role).open(f"/accounts/{shared}").reply.text]
    }
    assert buttons == {"viewer": (False, False), "trainer": (True, False), OFFICER: (True, True)}


def test_account_without_queue_and_allocation_says_so(ledger: Ledger) -> None:
    for account in (str(ledger.population()["id"]), str(ledger.budget()["id"])):
        words = visitor(ledger).open(f"/accounts/{account}").words
        assert "Reservations that wait No reservation waits." in words
        assert "It has no allocation: all of its limit is usable, and steps need no reservation." in words
        assert "reservations only" not in words
    assert "waiting" not in visitor(ledger).open("/").words.partition("Unfinished")[0]


def test_allocation_is_shown_with_usable_and_promised_shares(ledger: Ledger, shared: str) -> None:
    assert ask(ledger, "small", 20).json()["status"] == "active"
    found = visitor(ledger).open(f"/accounts/{shared}").part("sharing")
    assert "reservations only steps without one are refused" in found
    assert "Aging 7 days" in found
    assert "Unlocked 10.0 %" in found
    assert re.search(r"icu-team 25\.0 % 60\.0 % 2 (?!0\.0)\d+\.\d %", found), found
    taken = ledger.get(f"/v1/populations/{shared}").json()
    assert "Left now " + " ".join(percent(taken["available"]["share"]).split()) in found
    assert "more is locked in mimic" in visitor(ledger).open(f"/accounts/{team(ledger)}").words


def test_locked_share_is_neither_left_nor_used(ledger: Ledger, shared: str) -> None:
    left = ledger.get(f"/v1/populations/{shared}").json()["available"]["share"]
    assert left == pytest.approx(0.1)
    assert re.search(r"0\.0 % used, 10\.0 % left \(more is locked\).* OK", row_of(ledger)), row_of(ledger)
    assert 'class="locked"' in visitor(ledger).open("/").reply.text
    assert ask(ledger, "nearly-all", 120).json()["status"] == "active"
    assert not re.search("low|half|exhausted|blocked", row_of(ledger)), row_of(ledger)


@pytest.mark.parametrize(
    ("unlocked", "severity", "locked"), [(1.0, Severity.OK, True), (0.01, Severity.EXHAUSTED, False)]
)
def test_locked_account_is_as_urgent_as_what_is_used(unlocked: float, severity: Severity, locked: bool) -> None:  # noqa: FBT001
    status = status_at(
        "p/b",
        limit=Limit(3.0, 1e-5),
        used=0.0,
        used_including_reserved=0.0,
        available=Available(0.0, "p", "p", Available(unlocked, "p", "p")),
    )
    assert (status.severity, status.is_locked, status.left) == (severity, locked, 0.0)


@pytest.mark.usefixtures("shared")
def test_preview_says_whether_a_reservation_would_wait_or_be_refused(ledger: Ledger) -> None:
    ask(ledger, "first", 800)
    budget = team(ledger)
    for steps, said in ((10, "It fits"), (800, "It has to wait"), (1_000_000, "It does not fit")):
        words = visitor(ledger).open(f"/accounts/{budget}?steps={steps}&noise=1.1&rate=0.01").words
        assert said in words
        assert ("As a reservation it would wait at place" in words) == (said == "It has to wait")
    assert ledger.set_policy({"min_noise_multiplier": 2.0}, budget, OFFICER).status_code == 200
    words = visitor(ledger).open(f"/accounts/{budget}?steps=10&noise=1.1&rate=0.01").words
    assert "As a reservation of a new run it would be refused now:" in words


@pytest.mark.usefixtures("shared")
def test_run_page_has_the_place_of_its_reservation(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    now = ledger.database.clock.now()
    stand_at(monkeypatch, lambda: now)  # the page says for how long
    ask(ledger, "first", 800)
    run = ask(ledger, "second", 900).json()["id"]
    officer = visitor(ledger, OFFICER)
    page = officer.open(f"/runs/{run}")
    found = page.words.partition("Its reservation waits")[2].partition("Spending")[0]
    assert "Place 2 of 2" in found
    assert "mimic : a part of its limit is locked" in found
    assert "Cancel" in found
    assert "Status waiting" in page.words
    tag = officer.open(f"/runs/{run}", X_Part="page").reply.headers["etag"]
    assert officer.open(f"/runs/{run}", X_Part="page", If_None_Match=tag).status == 304
    ask(ledger, "third", 700)
    moved = officer.open(f"/runs/{run}", X_Part="page", If_None_Match=tag)
    assert "of 3" in moved.words.partition("Place")[2], "a poll sees that others have come"


def test_granted_reservation_is_unclaimed_until_it_is_claimed(ledger: Ledger, shared: str) -> None:
    made = ask(ledger, "first", 800).json()
    allocate(ledger, shared, rule="smallest_share")
    assert grant_waiting(ledger.database) == 1
    words = visitor(ledger).open(f"/runs/{made['id']}").words
    assert "that its trainer has not claimed yet" in words
    assert "active unclaimed granted" in words
    claimed = ledger.post(f"/v1/reservations/{made['waiting_reservation']}/claim", None, "trainer")
    assert claimed.status_code == 200, claimed.text
    assert "claimed" not in visitor(ledger).open(f"/runs/{made['id']}").words
    said = visitor(ledger, "auditor").open("/audit?action=reservation.granted").words
    assert "granted the waiting reservation of mimic/icu-team/first after " in said
    assert "seconds: first is who asks for the smallest share, its score is " in said
    assert "none was before it" in said


@pytest.mark.usefixtures("shared")
def test_run_whose_reservation_was_not_granted_names_it_as_its_end(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ask(ledger, "first", 1200, wait_until=later(0.01)).json()
    assert made["status"] == "waiting"
    start, auditor = ledger.database.clock.now(), visitor(ledger, "auditor")
    stand_at(monkeypatch, lambda: start + timedelta(minutes=1))
    assert expire_waiting(ledger.database) == 1
    assert "aborted reservation not granted" in auditor.open(f"/runs/{made['id']}").words
    assert "reservation not granted" in auditor.open("/runs?end_reason=not_granted").words
    audit = auditor.open("/audit").words
    assert "ended the reservation of mimic/icu-team/first, which waited in vain" in audit
    assert "aborted the run mimic/icu-team/first: reservation not granted" in audit
    assert "let a reservation of mimic/icu-team/first wait at place 1, for mimic (locked)" in audit


def test_audit_log_names_events_of_waiting_reservations(ledger: Ledger, shared: str) -> None:
    first, second = (ask(ledger, name, 800).json()["waiting_reservation"] for name in ("first", "second"))
    moved, ended = {"priority": -3, "reason": "Later."}, {"reason": "Not needed."}
    assert ledger.post(f"/v1/reservations/{second}/prioritize", moved, OFFICER).is_success
    assert ledger.post(f"/v1/reservations/{first}/cancel", ended, "trainer").is_success
    said = visitor(ledger, "auditor").open("/audit").words
    assert "moved the reservation of mimic/icu-team/second from priority 0 to -3" in said
    assert "cancelled the waiting reservation of mimic/icu-team/first" in said
    assert "changed the allocation of mimic: it admits reservations only, who asks for the smallest share first" in said
    allocate(ledger, shared)
    said = visitor(ledger, "auditor").open("/audit").words
    assert "changed the allocation of mimic: it has none any more" in said


def test_form_of_allocation_has_its_terms(ledger: Ledger, shared: str) -> None:
    unlock = {"type": "by_reservations", "reservations": 4}
    allocate(ledger, team(ledger), unlock=unlock)
    officer = visitor(ledger, OFFICER)
    page = officer.open(f"/accounts/{team(ledger)}")
    assert "0 of 4" in page.part("sharing")
    assert page.fields("Replace the allocation")["allocation.unlock.reservations"] == "4"
    fields = officer.open(f"/accounts/{shared}").fields("Replace the allocation")
    terms = {name.removeprefix("allocation."): value for name, value in fields.items()}
    assert (terms["rule"], terms["aging_seconds"]) == ("smallest_share", "7")
    assert (terms["unlock.over_seconds"], terms["unlock.parts"]) == ("10", "10"), "days, and parts"
    place = next(name for name, value in terms.items() if value == team(ledger)).removesuffix("account")
    assert [terms[place + each] for each in ("minimum", "maximum", "weight")] == ["25", "60", "2"]
