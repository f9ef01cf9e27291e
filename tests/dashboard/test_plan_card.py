"""The plan of an account on its page: its state, what is used of it, and its events."""

import re

from tests.conftest import SAMPLED, Ledger
from tests.dashboard.html_reader import visit, words
from tests.login_helpers import signed_in

QUIET = {"type": "gaussian", "noise_multiplier": 90.0}
LAPLACE = {"type": "laplace", "noise_multiplier": 500.0}
LIMIT = {"epsilon": 2.0, "delta": 1e-5}


def shown(ledger: Ledger, path: str) -> str:
    """The words of the card."""
    body = words(visit(ledger, path, signed_in(ledger)))
    body = re.sub(r"(?<=\d)\s(?=\d{3})", "", body)
    return body.partition(" Plan State ")[2].partition(" Spending by child ")[0].partition(" Noise and sampling ")[0]


def test_the_card_shows_what_is_used_reserved_and_left_of_a_plan(ledger: Ledger) -> None:
    planned = [{"event": SAMPLED, "count": 40}, {"event": QUIET}]
    population = str(ledger.population(limit=LIMIT, planned=planned)["id"])
    ledger.budget(limit=LIMIT)
    run = ledger.run(event=SAMPLED)
    assert ledger.post(f"/v1/runs/{run}/steps", {"count": 11}, "trainer").is_success
    reserved = {"plan": [{"event": SAMPLED, "count": 5}]}
    assert ledger.post(f"/v1/runs/{run}/reservations", reserved, "trainer").is_success
    plan = ledger.get(f"/v1/populations/{population}").json()["plan"]
    steps = plan["steps"]
    assert (plan["steps_used"], plan["steps_reserved"], plan["steps_left"]) == (11, 5, steps - 16)
    card = shown(ledger, f"/accounts/{population}")
    assert card.startswith("active admits what it covers")
    assert f"Used 11 of {steps} planned steps" in card
    assert "Reserved 5 by reservations" in card
    assert f"Left {steps - 16} in any order" in card
    assert "9.75e-6 97.5 % of the limit's" in card.replace("\N{NARROW NO-BREAK SPACE}", " ")
    assert "sampling with probability 0.01 40 40 11" in card
    assert f"Gaussian, noise multiplier 90 without end {steps - 40} 0" in card


def test_another_event_ends_a_plan_and_its_card_says_so(ledger: Ledger) -> None:
    ledger.population(limit=LIMIT)
    ledger.budget(limit=LIMIT)
    run = ledger.run(limit={"epsilon": 1.0, "delta": 1e-5})
    assert ledger.post(f"/v1/runs/{run}/steps", {"count": 2}, "trainer").is_success
    assert shown(ledger, f"/runs/{run}").startswith("active")
    assert ledger.post(f"/v1/runs/{run}/steps", {"event": LAPLACE}, "trainer").is_success
    assert shown(ledger, f"/runs/{run}").startswith("ended another event was charged")


def test_an_account_without_a_plan_has_no_card(ledger: Ledger) -> None:
    population = str(ledger.population()["id"])
    assert shown(ledger, f"/accounts/{population}") == ""
