"""Pages of accounts whose limits are in pure epsilon, rho and mu, and the forms that set such limits."""

import pytest

from tests.api.trainer import counted
from tests.conftest import Ledger
from tests.dashboard.page_visitor import visitor

GAUSSIAN = {"type": "gaussian", "noise_multiplier": 10.0}
STEP = {"epsilon": {"type": "laplace", "epsilon": 0.1}, "rho": GAUSSIAN, "mu": GAUSSIAN}


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ({"epsilon": 1.0, "delta": 0}, "epsilon 1 at delta 0"),
        ({"rho": 0.5}, "rho 0.5"),
        ({"rho": 0.5, "delta": 1e-9}, "rho 0.5 at delta 1e-9"),
        ({"mu": 1.0}, "mu 1"),
    ],
)
def test_pages_show_a_limit_in_its_unit(ledger: Ledger, limit: dict[str, float], words: str) -> None:
    event = STEP[next(iter(limit))]
    population = ledger.population("survey", limit=limit)["id"]
    run = ledger.run("survey", event=event)
    for count in (3, 1):
        steps = {"first_step": 3 if count == 1 else 0, "events": counted((event, count))}
        ledger.post(f"/v1/runs/{run}/steps", steps, "trainer").raise_for_status()
    ledger.post(f"/v1/runs/{run}/steps", {"first_step": 4, "events": counted((event, 1000))}, "trainer")
    read = visitor(ledger, "admin").open
    for path in ("/", f"/accounts/{population}", f"/runs/{run}", "/runs", "/planner"):
        page = read(path)
        assert page.status == 200, page.text
    assert words in read(f"/accounts/{population}").text
