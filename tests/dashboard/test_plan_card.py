"""The plan of an account on its page: its state, what is used of it, and its events."""

import re

from tests.conftest import SAMPLED, Ledger
from tests.dashboard.page_visitor import visitor

LIMIT = {"epsilon": 2.0, "delta": 1e-5}


def shown(ledger: Ledger, path: str) -> str:
    """The words of the card."""
    body = re.sub(r"(?<=\d)\s(?=\d{3})", "", visitor(ledger).open(path).words)
    return re.split(" Spending by child | Noise and sampling ", body.partition(" Plan State ")[2])[0]


def test_plan_card_shows_used_reserved_and_remaining_steps(ledger: Ledger) -> None:
    planned = [{"event": SAMPLED, "count": 40}, {"event": {"type": "gaussian", "noise_multiplier": 90.0}}]
    population = str(ledger.population(limit=LIMIT, planned=planned)["id"])
    ledger.budget(limit=LIMIT)
    run = ledger.run(event=SAMPLED)
    assert ledger.post(f"/v1/runs/{run}/steps", {"count": 11}, "trainer").is_success
    reserved = {"events": [{"event": SAMPLED, "count": 5}]}
    assert ledger.post(f"/v1/runs/{run}/reservations", reserved, "trainer").is_success
    plan = ledger.get(f"/v1/populations/{population}").json()["plan"]
    steps = plan["steps"]
    assert (plan["steps_used"], plan["steps_reserved"], plan["steps_remaining"]) == (11, 5, steps - 16)
    card = shown(ledger, f"/accounts/{population}").replace("\N{NARROW NO-BREAK SPACE}", " ")
    assert card.startswith("active admits what it covers")
    for said in (
        f"Used 11 of {steps} planned steps",
        "Reserved 5 by reservations",
        f"Left {steps - 16} in any order",
        "9.75e-6 97.5 % of the limit's",
        "sampling with probability 0.01 40 40 11",
        f"Gaussian, noise multiplier 90 without end {steps - 40} 0",
    ):
        assert said in card


def test_plan_card_names_the_event_that_ended_the_plan(ledger: Ledger) -> None:
    ledger.population(limit=LIMIT)
    ledger.budget(limit=LIMIT)
    run = ledger.run(limit={"epsilon": 1.0, "delta": 1e-5})
    assert ledger.post(f"/v1/runs/{run}/steps", {"count": 2}, "trainer").is_success
    assert shown(ledger, f"/runs/{run}").startswith("active")
    other = {"event": {"type": "laplace", "noise_multiplier": 500.0}}
    assert ledger.post(f"/v1/runs/{run}/steps", other, "trainer").is_success
    assert shown(ledger, f"/runs/{run}").startswith("ended another event was charged")
    assert shown(ledger, f"/accounts/{ledger.population('planless')['id']}") == ""
