"""Filters and limits: those that stand are those of the decisions; what was reported may lie over them."""

from collections.abc import Callable

import numpy as np
import pytest
from sqlalchemy import Connection, update

from app.persistence.tables import accounts
from app.service.verification import verify
from tests.api.trainer import HUGE, LOUD, QUIET, Trainer
from tests.conftest import SAMPLED, Ledger
from tests.service.tampering import ALL, TEAM, set_account, set_run, shift_weights, tampering

LIMITS: dict[str, Callable[[Connection], object]] = {
    "epsilon raised": lambda tx: set_account(tx, TEAM, epsilon_limit=50.0),
    "epsilon raised by a bit": lambda tx: set_account(tx, TEAM, epsilon_limit=np.nextafter(1.0, 2)),
    "delta raised": lambda tx: set_account(tx, TEAM, delta_limit=0.4),
    "epsilon of every account raised": lambda tx: tx.execute(
        update(accounts).where(accounts.c.epsilon_limit.is_not(None)).values(epsilon_limit=50.0)
    ),
}


@pytest.mark.parametrize("what", LIMITS)
def test_a_limit_is_that_under_which_decisions_were_made(ledger: Ledger, what: str) -> None:
    ledger.population(planned=[{"event": SAMPLED}])
    ledger.budget(planned=[{"event": SAMPLED}])
    run = ledger.run()
    ledger.post(f"/v1/runs/{run}/steps", {"count": 5})
    assert verify(ledger.database).sound
    with tampering(ledger.database) as tx:
        LIMITS[what](tx)
    problems = [problem for problem in verify(ledger.database).problems if problem.startswith(f"{TEAM} (bud_")]
    by_acts, by_decisions, *by_weights = problems
    assert "its limit is not the one that its organisation's audit events gave it" in by_acts
    assert "its limit is not the one under which decisions were made: epsilon 1.0 at delta 1e-05" in by_decisions
    assert bool(by_weights) == (what != "epsilon raised by a bit")
    assert all("its filter weights are not those of its planned workload" in problem for problem in by_weights)


def test_a_limit_far_above_is_that_which_its_refusals_name(ledger: Ledger) -> None:
    ledger.population(limit={"epsilon": 1.0, "delta": 1e-5})
    ledger.budget(limit={"epsilon": 3.0, "delta": 1e-5})
    run = ledger.run()
    assert ledger.post(f"/v1/runs/{run}/steps", {"count": 10**6}).json()["binding_account_path"] == ALL
    assert verify(ledger.database).sound
    with tampering(ledger.database) as tx:
        set_account(tx, ALL, epsilon_limit=2.0)
    problems = verify(ledger.database).problems
    assert len(problems) == 2
    assert all(problem.startswith(f"{ALL} (pop_") for problem in problems)


def test_a_run_that_went_over_its_limit_stays_overdrawn(ledger: Ledger) -> None:
    ledger.population()
    ledger.budget()
    trainer = Trainer(ledger, ledger.run())
    assert trainer.steps(mode="report", event=LOUD, count=10**4).json()["overdrawn"]
    for status in ("active", "paused", "completed", "aborted", "overdrawn"):
        with tampering(ledger.database) as tx:
            set_run(tx, status=status)
        found = verify(ledger.database)
        assert found.sound == (status == "overdrawn")
        yet = [problem for problem in found.problems if f"and yet it is {status}" in problem]
        assert bool(yet) == (status in {"active", "paused"})
        audit_events = [problem for problem in found.problems if "audit events leave it active" in problem]
        assert bool(audit_events) == (status in {"paused", "completed", "aborted"})


COIN = {"type": "randomized_response", "noise_parameter": 1.0, "num_buckets": 2}
"""It answers at random whatever the truth is, and costs nothing."""


@pytest.mark.parametrize("reserved", [False, True])
def test_a_plan_that_costs_nothing_leaves_the_weights_to_the_first_charge(ledger: Ledger, *, reserved: bool) -> None:
    ledger.population(neighboring_relation="replace_one")
    ledger.budget(planned=[{"event": COIN, "count": 5}])
    trainer = Trainer(ledger, ledger.run(event=LOUD))
    assert trainer.steps(event=COIN).status_code == 200
    assert verify(ledger.database).problems == ()
    if reserved:
        trainer.reserved((COIN, 3), (LOUD, 2))
    else:
        assert trainer.steps(events=[{"event": COIN}, {"event": LOUD, "count": 2}]).status_code == 200
    assert trainer.steps(event=QUIET).status_code == 200
    assert verify(ledger.database).problems == ()
    with tampering(ledger.database) as tx:
        shift_weights(tx, TEAM)
    assert not verify(ledger.database).sound


FIRST_REPORTS: dict[str, dict[str, object]] = {
    "over the limit": {"type": "gaussian", "noise_multiplier": 0.01},
    "more than any order of the limit bears": HUGE,
    "everything at every order": {"type": "self_composed", "event": HUGE, "count": 10**9},
    "a delta of its own over the limit's": {"type": "epsilon_delta", "epsilon": 0.1, "delta": 0.01},
}


@pytest.mark.parametrize("planned", [[], [{"event": LOUD}]], ids=["orders", "plan"])
@pytest.mark.parametrize("what", FIRST_REPORTS)
def test_what_was_reported_first_may_be_as_loud_as_it_was(
    ledger: Ledger, what: str, planned: list[dict[str, object]]
) -> None:
    ledger.population(planned=planned)
    ledger.budget(planned=planned)
    trainer = Trainer(ledger, ledger.run(event=LOUD))
    assert trainer.steps(mode="report", event=FIRST_REPORTS[what]).json()["overdrawn"]
    assert verify(ledger.database).problems == ()
    other = Trainer(ledger, ledger.run(name="other", event=LOUD))
    assert (other.steps().status_code, other.reserve((LOUD, 2)).status_code) == (403, 403)
    assert trainer.steps(mode="report", event=QUIET, count=3).status_code == 200
    assert verify(ledger.database).problems == ()


def test_a_report_over_the_limit_hides_nothing_that_was_let_through(ledger: Ledger) -> None:
    ledger.population()
    ledger.budget()
    trainer = Trainer(ledger, ledger.run(event=LOUD))
    trainer.steps(count=20)
    trainer.reserved((LOUD, 5))
    trainer.steps(mode="report", event=HUGE)
    assert verify(ledger.database).problems == ()
    with tampering(ledger.database) as tx:
        set_account(tx, TEAM, epsilon_limit=0.01)
    assert any("more is spent and held" in problem for problem in verify(ledger.database).problems)
