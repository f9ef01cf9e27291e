"""Verification of ledgers that are sound, however they were charged, and of those that a table does not show."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import delete, select, update

from app.accounting.curves import GRID_VERSION
from app.accounting.events import Laplace, NeighboringRelation, canonical, event_from_dict, fingerprint
from app.accounting.rdp import FORMULA_VERSION, event_curve
from app.ledger.accounts.account import zero_curve
from app.ledger.audit import AuditEntry, audit_entry_hash, audit_genesis
from app.ledger.filter.filters import filter_weights
from app.ledger.filter.limits import Limit
from app.ledger.runs.reservations import ReservedItem
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories.account_values import weights_facts, weights_text
from app.persistence.repositories.audit import all_entries
from app.persistence.repositories.dp_events import CostTable, StoredCost
from app.persistence.tables import accounts, audit_entries, decision_events, decisions, runs
from app.service.audit.checkpoints import sign_due
from app.service.signing.signatures import signer_of
from app.service.verification import balances, report
from app.service.verification import verify as verifying
from app.service.verification.balances import price_problem
from app.service.verification.verify import verify
from tests.api.trainer import HUGE, LOUD, QUIET, Trainer, hired
from tests.conftest import SAMPLED, Ledger, furnished, signing_key
from tests.ledger.conftest import make_account
from tests.persistence.dump import dump
from tests.service import tampering as by_hand
from tests.service.prepared_ledgers import OTHER, charge, compose, copied, lower_limit, reserve
from tests.service.step_commands import organisation
from tests.service.tampering import ALL, MODEL, TEAM, tampering, write_account

FURNISHED = {"charged_ledger": charge, "reserving": reserve, "lowered": lower_limit, "composed": compose}


@pytest.fixture
def charged(tmp_path: Path) -> Iterator[Database]:
    with copied("charged", tmp_path) as opened:
        yield opened


@pytest.fixture
def charged_ledger(ledger: Ledger) -> Ledger:
    return ledger


@pytest.fixture
def composed(ledger: Ledger) -> Ledger:
    return ledger


@pytest.fixture
def reserving(ledger: Ledger) -> Trainer:
    return Trainer(ledger, furnished("sqlite", reserve)[0].run)


@pytest.fixture
def lowered(ledger: Ledger) -> Trainer:
    return Trainer(ledger, furnished("sqlite", lower_limit)[0].run)


def is_sound(ledger: Ledger, **checked: int) -> bool:
    """Whether nothing is found, and so much was checked."""
    found = verify(ledger.database)
    assert found.problems == ()
    return checked.items() <= found.checked.items()


def names(database: Database, words: str) -> bool:
    return any(words in problem for problem in verify(database).problems)


@pytest.mark.both_databases
def test_verification_counts_its_work_and_changes_nothing(
    charged_ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = charged_ledger
    Trainer(ledger, ledger.run(name="reserving", event=LOUD)).reserved((LOUD, 5))
    before = dump(ledger.database)
    counted = {"accounts": 7, "runs": 4, "decisions": 6, "charges": 7, "steps": 19, "reservations": 1}
    assert is_sound(ledger, **counted)
    monkeypatch.setattr(report, "PRICES_AT_ONCE", 1)
    monkeypatch.setattr(verifying, "ROWS_AT_ONCE", 1)
    assert is_sound(ledger, **counted)
    assert dump(ledger.database) == before
    with tampering(ledger.database) as tx:
        by_hand.shift_curve(tx, TEAM, 1)
        by_hand.set_run(tx, MODEL, next_step=0)
    assert {MODEL, TEAM} == {problem.partition(" (")[0] for problem in verify(ledger.database).problems}


def test_ledger_without_room_for_a_step_is_sound(ledger: Ledger) -> None:
    assert is_sound(ledger, accounts=0, runs=0, charges=0, steps=0)
    trainer = hired(ledger, limit={"epsilon": 1.0, "delta": 1e-6})
    for event in (SAMPLED, LOUD, {"type": "gaussian", "noise_multiplier": 1e4}):
        trainer.steps(event=event, count=10**9, on_exceed="truncate")
    assert trainer.steps(event=LOUD).status_code == 403
    assert is_sound(ledger)


@pytest.mark.parametrize(
    ("factor", "version"),
    [(1.0, FORMULA_VERSION), (1.1, FORMULA_VERSION), (0.999, FORMULA_VERSION), (1.0, 2), (1.0, 0)],
)
def test_price_of_other_formulas_is_a_problem(factor: float, version: int) -> None:
    event = Laplace(5.0)
    curve = event_curve(event, NeighboringRelation.ADD_OR_REMOVE_ONE)
    prices = CostTable("org_1", NeighboringRelation.ADD_OR_REMOVE_ONE, GRID_VERSION)
    kept = replace(curve, values=(curve.values * factor).astype(np.int64))
    problem = price_problem(StoredCost(fingerprint(event), canonical(event), prices, kept, version))
    assert (problem is None) == (factor == 1.0 and version == FORMULA_VERSION)


def test_every_organisation_is_verified(charged_ledger: Ledger) -> None:
    ledger = charged_ledger
    there = replace(ledger, keys=ledger.keys | {("hospital", "admin"): ledger.keys["clinic", "admin"]})
    there.population()
    there.budget("clinic-team")
    assert there.post(f"/v1/runs/{there.run('mimic/clinic-team', event=OTHER)}/steps", {}).status_code == 200
    assert is_sound(ledger, accounts=9)
    with tampering(ledger.database) as tx:
        by_hand.shift_curve(tx, "mimic/clinic-team", -1)
    [problem] = verify(ledger.database).problems
    assert "mimic/clinic-team (bud_" in problem
    assert verify(ledger.database, organisation(ledger)).problems == ()


@pytest.mark.parametrize("executed", [2, 6])
def test_committed_plan_is_spent_as_executed(reserving: Trainer, executed: int) -> None:
    plan = reserving.read()["reservation"]
    assert reserving.end(plan, "commit", executed).status_code == 200
    assert is_sound(reserving.ledger, steps=2 + executed)
    reserving.reserved((QUIET, 1), preceding={"reservation": plan, "steps_executed": executed})  # said once more
    assert is_sound(reserving.ledger)


def test_forfeited_plan_is_charged_and_not_taken(reserving: Trainer) -> None:
    assert reserving.act("abort").status_code == 200
    assert is_sound(reserving.ledger, steps=4, charges=4)
    assert len({each.spent.to_bytes() for each in reserving.path()}) == 1
    with tampering(reserving.ledger.database) as tx:
        tx.exec_driver_sql("UPDATE reservations SET status = 'committed', steps_executed = 2")
    assert names(reserving.ledger.database, "is not what was forfeited")


def test_step_that_a_lowered_limit_had_revoked_is_named(lowered: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a service would have let it through that takes no notice of it."""
    monkeypatch.setattr(ReservedItem, "left", ReservedItem.unused)
    assert lowered.steps(count=160).json()["reservation"] is not None
    [problem] = verify(lowered.ledger.database).problems
    assert problem.endswith("that a lowered limit had revoked.")


def test_lowered_limit_of_a_whole_revokes_what_its_parts_may_not_take(composed: Ledger) -> None:
    [group] = [each["id"] for each in composed.get("/v1/populations").json()["items"] if each["name"] == "group"]
    body = {"limit": {"epsilon": 0.55, "delta": 1e-5}, "reason": "the study was narrowed"}
    assert composed.post(f"/v1/accounts/{group}/limit", body, If_Match="*").status_code == 200
    [changed] = composed.get("/v1/audit-events?action=population.limit_changed", "auditor").json()["items"]
    [revoked] = changed["after"]["revoked"]
    assert sum(revoked["steps"].values()) == 40
    assert is_sound(composed)


def test_plans_under_many_parts_take_from_all_accounts_above(charged: Database) -> None:
    """Beyond 256, equal numbers of parts are not one object."""
    population, whole, part = ("org", "population"), ("org", "whole"), ("org", "part")
    with charged.read(ALL_TENANTS) as tx:
        audit = report.VerificationContext(tx, children={population: [whole], whole: [part] * 257})
        audit.balances[part] = report.Balance(make_account(), left=1)
        audit.balances[whole] = report.Balance(replace(make_account(), partitions_per_unit=1))
        audit.balances[population] = report.Balance(make_account())
        for each in (whole, population):
            assert balances._current_of(audit, each) == (zero_curve(GRID_VERSION), True)
        audit.balances[part].spent["an event without a price"] = 1
        assert balances._value_of(audit, population) is None


def test_decisions_of_a_run_without_a_limit_are_made_under_that_of_its_budget(charged: Database) -> None:
    team = make_account(name="team")
    run = replace(make_account(name="run", limited=False), parent_id=team.id)
    with charged.read(ALL_TENANTS) as tx:
        audit = report.VerificationContext(tx)
        audit.balances = {("org", each.id): report.Balance(each) for each in (run, team)}
        assert [each.account for each in audit.upwards(("org", run.id))] == [run, team]


CHANGED: list[tuple[int, dict[str, Any]]] = [(0, {"idempotency_key": None}), (1, {"refusal_details": "{}"})]
CHANGED += [(2, {"epsilon": 0.001}), (4, {"attempt": 2}), *((position, {}) for position in range(5))]


@pytest.mark.parametrize(("position", "values"), CHANGED)
def test_changed_or_lost_decision_is_the_first_bad_row(
    charged: Database, position: int, values: dict[str, Any]
) -> None:
    with tampering(charged) as tx:
        if values:
            by_hand.set_decision(tx, position, **values)
        else:
            by_hand.forget(tx, position)
        if position == 4 and not values:  # even if the run's row says nothing of it
            by_hand.set_run(tx, decision_count=4, next_step=11)
    assert next(each.position for each in verify(charged).discrepancies if each.position is not None) == position


def test_chain_of_another_run_is_bad_from_its_first_row(charged: Database) -> None:
    with tampering(charged) as tx:
        by_hand.reseal(tx)
    assert verify(charged).problems == ()  # every hash was right
    with tampering(charged) as tx:
        run, other = by_hand.run_of(tx), by_hand.run_of(tx, f"{ALL}/planned/idle")
        for table in (decisions, decision_events):
            tx.execute(update(table).where(table.c.run_id == run).values(run_id=other))
        row = tx.execute(select(runs).where(runs.c.account_id == run)).mappings().one()
        values = {name: row[name] for name in ("next_step", "decision_count", "chain_head")}
        tx.execute(update(runs).where(runs.c.account_id == other).values(values))
    named = {each.account_id: each.position for each in reversed(verify(charged).discrepancies)}
    assert named[other] == 0


def test_chain_that_was_rewritten_is_not_the_one_that_the_organisation_is_tied_to(charged: Database) -> None:
    signer: Any = signer_of(str(signing_key()[0]))
    assert sign_due(charged, signer, 3600, datetime.now(UTC)) > 0
    assert verify(charged).problems == ()
    with tampering(charged) as tx:
        by_hand.set_decision(tx, 2, epsilon=0.001)
        by_hand.reseal(tx)
    assert names(charged, "is not the one that the organisation's chain is tied to: it was rewritten.")


def test_cut_off_audit_log_leaves_accounts_that_nothing_opened(charged: Database) -> None:
    with tampering(charged) as tx:
        tx.execute(delete(audit_entries).where(audit_entries.c.position >= 9))
    problems = verify(charged).problems
    made = [problem for problem in problems if "is one that no entry of the audit log has made" in problem]
    assert sum("/1 of attempts " in problem for problem in made) == 3
    assert sum("no audit event of its organisation says that it was opened" in problem for problem in problems) == 5


def test_limit_forged_with_its_audit_event_and_every_hash_is_not_found_by_rows_alone(trainer: Trainer) -> None:
    """What the signed checkpoints are for: docs/explanation/verification.md says so."""
    owner, database = organisation(trainer.ledger), trainer.ledger.database
    with tampering(database) as tx:
        population, head = by_hand.account(tx, "mimic").id, audit_genesis(owner)
        tuned = filter_weights(
            Limit(9.0, 1e-5),
            event_curve(event_from_dict(LOUD), NeighboringRelation.ADD_OR_REMOVE_ONE, GRID_VERSION),
            GRID_VERSION,
        )
        for kept in list(all_entries(tx, owner)):
            after = json.loads(kept.after or "{}")
            if kept.subject == population:
                after |= {"limit": {"delta": 1e-5, "epsilon": 9.0}}
            if "tuned" in after:
                after["tuned"]["weights"][population] = weights_facts(tuned)
            if kept.subject == population or "tuned" in after:
                kept = replace(kept, after=json.dumps(after, sort_keys=True, separators=(",", ":")))  # noqa: PLW2901
            head = audit_entry_hash(head, kept)
            this = (audit_entries.c.organisation_id == owner) & (audit_entries.c.position == kept.position)
            tx.execute(update(audit_entries).where(this).values(entry_hash=head, after=kept.after))
        tx.execute(update(accounts).where(accounts.c.id == population).values(limit_value=9.0))
        weights = weights_text(tuned)
        tx.execute(update(accounts).where(accounts.c.id == population).values(filter_weights=weights))
    assert verify(database).sound


def test_audit_entry_is_hashed_whole() -> None:
    assert {*AuditEntry.__dataclass_fields__, "entry_hash"} == {column.name for column in audit_entries.c}


def test_run_that_reported_over_its_limit_stays_overdrawn(trainer: Trainer) -> None:
    assert trainer.steps(mode="report", count=10**4).json()["overdrawn"]
    assert is_sound(trainer.ledger)
    for status in ("active", "paused", "completed"):
        with tampering(trainer.ledger.database) as tx:
            by_hand.set_run(tx, status=status)
        assert names(trainer.ledger.database, f"and yet it is {status}") == (status != "completed")
        assert names(trainer.ledger.database, "audit events leave it active") == (status != "active")


COIN = {"type": "randomized_response", "noise_parameter": 1.0, "num_buckets": 2}
"""It answers at random whatever the truth is, and costs nothing."""


@pytest.mark.parametrize("reserved", [False, True])
def test_plan_that_costs_nothing_leaves_the_weights_to_the_first_charge(ledger: Ledger, *, reserved: bool) -> None:
    ledger.population(neighboring_relation="replace_one")
    ledger.budget(planned=[{"event": COIN, "count": 5}])
    trainer = Trainer(ledger, ledger.run(event=LOUD))
    assert trainer.steps(event=COIN).status_code == 200
    assert is_sound(ledger)
    if reserved:
        trainer.reserved((COIN, 3), (LOUD, 2))
    else:
        assert trainer.steps(events=[{"event": COIN}, {"event": LOUD, "count": 2}]).status_code == 200
    assert trainer.steps(event=QUIET).status_code == 200
    assert is_sound(ledger)
    with tampering(ledger.database) as tx:
        by_hand.reweigh(tx, TEAM, lambda weights: {"indices": [index + 1 for index in weights["indices"]]})
    assert not verify(ledger.database).sound


FIRST_REPORTS: dict[str, dict[str, object]] = {
    "over the limit": {"type": "gaussian", "noise_multiplier": 0.01},
    "more than any order of the limit bears": HUGE,
    "everything at every order": {"type": "self_composed", "event": HUGE, "count": 10**9},
    "a delta of its own over the limit's": {"type": "epsilon_delta", "epsilon": 0.1, "delta": 0.01},
}


@pytest.mark.parametrize("planned", [[], [{"event": LOUD}]], ids=["orders", "plan"])
def test_first_report_may_be_as_loud_as_it_was(ledger: Ledger, planned: list[dict[str, object]]) -> None:
    for name, event in FIRST_REPORTS.items():
        ledger.population(name, planned=planned)
        ledger.budget("team", name, planned=planned)
        trainer, other = (Trainer(ledger, ledger.run(f"{name}/team", name=each, event=LOUD)) for each in ("one", "two"))
        assert trainer.steps(mode="report", event=event).json()["overdrawn"], name
        assert (other.steps().status_code, other.reserve((LOUD, 2)).status_code) == (403, 403), name
        assert is_sound(ledger), name
        assert trainer.steps(mode="report", event=QUIET, count=3).status_code == 200, name
    assert is_sound(ledger)


def test_report_over_the_limit_hides_nothing_that_was_admitted(trainer: Trainer) -> None:
    trainer.steps(count=20)
    trainer.reserved((LOUD, 5))
    trainer.steps(mode="report", event=HUGE)
    assert is_sound(trainer.ledger)
    write_account(trainer.ledger.database, TEAM, limit_value=0.01)
    assert names(trainer.ledger.database, "more is spent and held")
