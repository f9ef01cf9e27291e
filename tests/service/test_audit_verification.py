"""The chain of audit events: whatever is changed in it, left out, put in, swapped or cut off is found and named."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import ColumnElement, Connection, delete, func, insert, select, update

from app.ledger.audit import AuditEntry, audit_entry_hash, audit_genesis
from app.persistence.repositories.audit import all_entries
from app.persistence.tables import accounts, api_keys, audit_entries, proposals, runs
from app.service.verification import verify
from tests.conftest import Ledger
from tests.service.step_commands import organisation
from tests.service.tampering import account, set_account, tampering


def _of(owner: str) -> ColumnElement[bool]:
    return audit_entries.c.organisation_id == owner


def _at(owner: str, position: int) -> ColumnElement[bool]:
    return _of(owner) & (audit_entries.c.position == position)


def _rewrite(tx: Connection, owner: str) -> None:
    """Recompute every hash, as somebody would who knows how."""
    head = audit_genesis(owner)
    for kept in list(all_entries(tx, owner)):
        head = audit_entry_hash(head, kept)
        tx.execute(update(audit_entries).where(_at(owner, kept.position)).values(entry_hash=head))


def _values(**values: object) -> Callable[[Connection, str], object]:
    return lambda tx, owner: tx.execute(update(audit_entries).where(_at(owner, 9)).values(values))


def _swap(tx: Connection, owner: str) -> None:
    for before, after in ((8, 99), (9, 8), (99, 9)):
        tx.execute(update(audit_entries).where(_at(owner, before)).values(position=after))


def _insert(tx: Connection, owner: str) -> None:
    last: dict[str, Any] = dict(
        tx.execute(select(audit_entries).where(_of(owner)).order_by(audit_entries.c.position.desc())).mappings().first()
        or {}
    )
    tx.execute(insert(audit_entries).values(last | {"position": last["position"] + 1}))


CHANGED: dict[str, tuple[Callable[[Connection, str], object], str]] = {
    "the actor": (_values(actor="key_other"), "audit event 9 (budget.created) is not the recorded one"),
    "the reason": (_values(reason="None."), "audit event 9 (budget.created) is not the recorded one"),
    "what is there now": (_values(after="{}"), "audit event 9 (budget.created) is not the recorded one"),
    "the request": (_values(request_id=None), "audit event 9 (budget.created) is not the recorded one"),
    "a hash": (_values(entry_hash=bytes(32)), "audit event 9 (budget.created) is not the recorded one"),
    "one left out": (
        lambda tx, owner: tx.execute(delete(audit_entries).where(_at(owner, 9))),
        "audit event 9 is missing",
    ),
    "two swapped": (_swap, "audit event 8 (budget.created) is not the recorded one"),
    "one put in": (_insert, "audit event 11 (run.created) is not the recorded one"),
}


@pytest.fixture
def lived_in(ledger: Ledger) -> Ledger:
    """A population, a budget and a run."""
    ledger.population()
    ledger.budget()
    ledger.run()
    return ledger


@pytest.mark.parametrize("what", CHANGED)
def test_what_was_changed_in_the_chain_is_named(lived_in: Ledger, what: str) -> None:
    change, named = CHANGED[what]
    owner = organisation(lived_in)
    assert verify(lived_in.database).sound
    with tampering(lived_in.database) as tx:
        change(tx, owner)
    [problem] = verify(lived_in.database).problems
    assert problem.startswith(f"{owner}: {named}")
    assert verify(lived_in.database).unproven == {}


def test_a_chain_cut_off_is_found_by_the_accounts_that_nothing_opened(lived_in: Ledger) -> None:
    owner = organisation(lived_in)
    with tampering(lived_in.database) as tx:
        tx.execute(delete(audit_entries).where(_of(owner), audit_entries.c.position >= 9))
    problems = verify(lived_in.database).problems
    made = [problem for problem in problems if "is one that no entry of the audit log has made" in problem]
    assert sum("/1 of attempts " in problem for problem in made) == 1
    assert sum(" of account_metadata " in problem for problem in made) == 2
    opened = [problem for problem in problems if problem not in made]
    assert len(opened) == 2
    assert all("no audit event of its organisation says that it was opened" in problem for problem in opened)


FORGED: dict[str, tuple[Callable[[Connection], object], str]] = {
    "an epsilon": (lambda tx: set_account(tx, "mimic", epsilon_limit=9.0), "its limit is not the one"),
    "a revision": (lambda tx: set_account(tx, "mimic", limit_revision=1), "its limit is not the one"),
    "a plan": (lambda tx: set_account(tx, "mimic", planned_events="[]"), "planned_sha256"),
    "a size": (lambda tx: tx.exec_driver_sql("UPDATE populations SET size = 10"), "it is not as it was opened: size"),
    "a unit": (
        lambda tx: tx.exec_driver_sql("UPDATE populations SET privacy_unit = 'visit'"),
        "it is not as it was opened: privacy_unit",
    ),
    "a run's status": (lambda tx: tx.execute(update(runs).values(status="completed")), "audit events leave it active"),
    "a run's default": (
        lambda tx: tx.execute(update(runs).values(event_fingerprint=None)),
        "it is not as it was opened: event",
    ),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_row_that_no_audit_event_made_so_is_named(ledger: Ledger, what: str) -> None:
    ledger.population(planned=[{"event": {"type": "gaussian", "noise_multiplier": 90.0}, "count": 3}])
    ledger.budget()
    ledger.run()
    change, named = FORGED[what]
    with tampering(ledger.database) as tx:
        change(tx)
    found = verify(ledger.database)
    assert any(named in problem for problem in found.problems), found.problems
    assert found.unproven


def test_a_limit_forged_with_its_audit_event_and_every_hash_is_not_found_by_the_rows_alone(lived_in: Ledger) -> None:
    """What the signed checkpoints are for: docs/explanation/verification.md says so."""
    owner = organisation(lived_in)
    with tampering(lived_in.database) as tx:
        population = account(tx, "mimic").id
        for kept in list(all_entries(tx, owner)):
            if kept.subject == population:
                after = json.loads(kept.after or "{}") | {"limit": {"delta": 1e-5, "epsilon": 9.0}}
                text = json.dumps(after, sort_keys=True, separators=(",", ":"))
                tx.execute(update(audit_entries).where(_at(owner, kept.position)).values(after=text))
        tx.execute(update(accounts).where(accounts.c.id == population).values(epsilon_limit=9.0))
        _rewrite(tx, owner)
    assert verify(lived_in.database).sound


def test_an_entry_is_hashed_whole() -> None:
    fields = set(AuditEntry.__dataclass_fields__)
    assert fields | {"entry_hash"} == {column.name for column in audit_entries.c}


def test_an_account_that_was_deleted_is_named_and_nothing_is_charged_to_it(lived_in: Ledger) -> None:
    ledger, path = lived_in, "mimic/icu-team/model"
    with tampering(ledger.database) as tx:
        run = account(tx, path).id
        tx.execute(delete(accounts).where(accounts.c.id == run))
    found = verify(ledger.database)
    assert f"{path} ({run}): it was opened, and its row is missing, or cannot be read." in found.problems
    assert (organisation(ledger), run) in found.unproven


OFFICE: dict[str, Callable[[Connection], object]] = {
    "a role": lambda tx: tx.execute(update(api_keys).where(api_keys.c.role == "viewer").values(role="admin")),
    "an issuer": lambda tx: tx.execute(update(api_keys).where(api_keys.c.role == "viewer").values(created_by="key_1")),
    "a revocation": lambda tx: tx.execute(update(api_keys).values(revoked_at=None)),
    "a scope": lambda tx: tx.execute(update(api_keys).values(scope_id=None)),
    "a key that was left out": lambda tx: tx.execute(delete(api_keys).where(api_keys.c.scope_id.is_not(None))),
    "a proposer": lambda tx: tx.execute(update(proposals).values(proposed_by="key_other")),
    "a decision": lambda tx: tx.execute(update(proposals).values(status="approved")),
    "what was proposed": lambda tx: tx.execute(
        update(proposals).values(payload=func.replace(proposals.c.payload, '"epsilon":2', '"epsilon":9'))
    ),
    "a proposal that was left out": lambda tx: tx.execute(delete(proposals)),
}


@pytest.mark.parametrize("what", OFFICE)
def test_what_was_changed_of_keys_and_proposals_is_named(lived_in: Ledger, what: str) -> None:
    bound = lived_in.post("/v1/api-keys", {"role": "trainer", "scope": "mimic/icu-team"}).json()["id"]
    revoked = lived_in.post("/v1/api-keys", {"role": "trainer"}).json()["id"]
    assert lived_in.post(f"/v1/api-keys/{revoked}/revoke", {}).status_code == 200
    assert lived_in.post(f"/v1/api-keys/{bound}/rotate", {"overlap_seconds": 60}).status_code == 201
    account_id = lived_in.get("/v1/budgets").json()["items"][0]["id"]
    more = {"limit": {"epsilon": 2.0, "delta": 1e-5}, "reason": "More."}
    path = f"/v1/accounts/{account_id}/limit"
    made = lived_in.post(path, more, "planner", If_Match="*").json()["id"]
    assert lived_in.post(f"/v1/proposals/{made}/reject", {}, "admin").status_code == 200
    assert lived_in.post(path, more, "planner", If_Match="*").status_code == 201
    assert verify(lived_in.database).problems == ()
    with tampering(lived_in.database) as tx:
        OFFICE[what](tx)
    found = verify(lived_in.database).problems
    subject = "the row prp_" if "propos" in what or what == "a decision" else "the row key_"
    assert any(subject in problem for problem in found), found
    owner = organisation(lived_in)
    assert any(subject in problem for problem in verify(lived_in.database, owner).problems)
