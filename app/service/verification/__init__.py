"""Proof of the ledger: every account recomputed from the charges alone, every chain of decisions walked."""

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime

from app.ledger.accounts import AccountKind
from app.ledger.audit import Asker
from app.ledger.roles import Permission
from app.persistence.engine import EVERYONE, Database
from app.persistence.postgresql import is_id
from app.persistence.repositories import accounts, acts, checkpoints, entries, parts
from app.persistence.repositories.accounts import KeptAccount
from app.persistence.repositories.entries import KeptRun
from app.service.asking.call import Call
from app.service.measuring import counters
from app.service.parts import budget_facts, part_facts
from app.service.terms import account_facts, run_facts
from app.service.verification.balances import judge
from app.service.verification.chains import replay
from app.service.verification.findings import Audit, Balance, Fault, Verification, together
from app.service.verification.office import office_disagreements
from app.service.verification.placing import place
from app.service.verification.prices import read_prices
from app.service.verification.terms import disagreements, read_acts, skeleton_of
from app.service.verification.turns import turn
from app.service.verification.witnesses import Witness, contradictions, document_fault, kept_witness

__all__ = ["Fault", "Verification", "enforce", "together", "verify", "verify_organisation"]

ROWS_AT_ONCE = 100
"""How many rows are fetched at a time: one of an account has 22 KB."""


def verify(db: Database, organisation_id: str | None = None, witnesses: Collection[Witness] = ()) -> Verification:
    """Recompute accounts from their charges and compare the bytes; walk each run's chain.

    Args:
        db: the ledger's database.
        organisation_id: whose ledger; None: of every organisation.
        witnesses: checkpoints that were kept elsewhere.

    Returns:
        What was found; nothing is changed.
    """
    with db.read(organisation_id or EVERYONE, patient=True) as tx:
        # PostgreSQL's driver would fetch the whole of a result before it gives the first row.
        tx.execution_options(yield_per=ROWS_AT_ONCE)
        audit = Audit(tx)
        read_prices(audit, organisation_id)
        _read_acts(audit, organisation_id, witnesses)
        audit.paths = entries.ancestors(tx, organisation_id, audit.report)
        audit.charged = entries.charged_budgets(tx, organisation_id, audit.report)
        audit.attested, audit.blocks = parts.everything(tx, organisation_id, audit.report)
        audit.reservations = entries.kept_reservations(tx, organisation_id, audit.report)
        for (owner, _), reservation in audit.reservations.items():
            audit.plans.setdefault((owner, reservation.run_id), []).append(reservation)
        _judge_accounts(audit, organisation_id)
        quarantined = entries.quarantined(tx, organisation_id, audit.report)
    return Verification(
        accounts=audit.accounts,
        runs=audit.runs,
        decisions=audit.decisions,
        reservations=len(audit.reservations),
        charges=audit.charges,
        steps=audit.steps,
        acts=sum(told.acts for told in audit.told.values()),
        faults=tuple(audit.faults),
        quarantined=quarantined,
        organisation_id=organisation_id,
    )


def _read_acts(audit: Audit, organisation_id: str | None, witnesses: Collection[Witness]) -> None:
    """Walk the chains of acts, and hold them against the checkpoints that signed them."""
    kept = list(checkpoints.everything(audit.tx, organisation_id, audit.report))
    known = [*map(kept_witness, kept), *witnesses]
    signed = {(witness.organisation_id, witness.acts) for witness in known}
    audit.told = read_acts(acts.everything(audit.tx, organisation_id, audit.report), signed)
    wrong = [(owner, told.fault) for owner, told in audit.told.items() if told.fault is not None]
    wrong += [(each.organisation_id, fault) for each in kept if (fault := document_fault(each)) is not None]
    wrong += contradictions(audit.told, known)
    wrong += office_disagreements(audit, organisation_id)
    audit.faults += [Fault(owner, None, None, f"{owner}: {detail}") for owner, detail in wrong]


def _judge_accounts(audit: Audit, organisation_id: str | None) -> None:
    """Judge each run as it comes, after the accounts above it; those are judged when every run has been counted."""
    runs = {(run.organisation_id, run.id): run for run in entries.kept_runs(audit.tx, organisation_id, audit.report)}
    missing = {owner: set(told.terms) for owner, told in audit.told.items() if told.fault is None}
    for kept in accounts.everything(audit.tx, organisation_id, audit.report):
        key = (kept.organisation_id, kept.id)
        missing.get(key[0], set()).discard(key[1])
        audit.accounts += 1
        audit.balances[key] = Balance(kept.account)
        run = runs.pop(key, None)
        if audit.believes(key[0]):
            with audit.guarded(key):
                _compare(audit, kept, run)
        if kept.name_skeleton != skeleton_of(kept.account):
            audit.add(key, "what is kept of its name, to refuse others that look alike, is not of this name.")
        if kept.account.kind is AccountKind.RUN:
            with audit.guarded(key):
                if run is not None:
                    replay(audit, run)
                judge(audit, key)
            del audit.balances[key]
    audit.know_children()
    for key in audit.balances:
        with audit.guarded(key):
            judge(audit, key)
    _name_missing(audit, missing)


def _compare(audit: Audit, kept: KeptAccount, run: KeptRun | None) -> None:
    """Hold an account against what the acts of its organisation say of it."""
    key = (kept.organisation_id, kept.id)
    facts = account_facts(kept.account, kept.population)
    facts |= run_facts(run.event, run.declared_steps, run.declared_steps_per_hour) if run else {}
    facts |= part_facts(audit.attested.get(key), audit.blocks.get(key))
    facts |= budget_facts(audit.charged.get(key, ()))
    told = audit.told.get(key[0])
    for detail in disagreements(kept.record, facts, audit.terms(key), told.house_policy if told else None):
        audit.add(key, detail)


def _name_missing(audit: Audit, missing: Mapping[str, Collection[str]]) -> None:
    """Name accounts that were opened, and have no row that can be read."""
    for owner, account_ids in missing.items():
        for account_id in sorted(account_ids):
            path = json.loads(audit.told[owner].terms[account_id].facts).get("path")
            detail = f"{path} ({account_id}): it was opened, and its row is missing, or cannot be read."
            audit.faults.append(Fault(owner, account_id, None, detail))


def enforce(db: Database, found: Verification, asker: Asker, now: datetime) -> Verification:
    """Stop writes to accounts that are found wrong. Only two persons let them pass again, never a verification.

    What was found may be old by now: rows were restored since. So it only names organisations to look at again:
    those with an account that is not stopped for what was found. One verification at a time does that, and what it
    finds then is written before the next one looks. So an account that is charged meanwhile is stopped as any other.

    Args:
        db: the ledger's database.
        found: by a verification.
        asker: who verifies.
        now: in UTC.

    Returns:
        What holds now: `found`, or what the second look found.
    """
    with turn(db):
        with db.read(found.organisation_id or EVERYONE) as tx:
            standing = entries.quarantined(tx, found.organisation_id, lambda _: None)  # it was reported before
        other = {key[0] for key, why in found.unproven.items() if standing.get(key) != why}
        again = [
            place(db, organisation_id, verify(db, organisation_id), asker, now)
            for organisation_id in sorted(filter(is_id, other))  # nobody charges anything under what is no id
        ]
    return replace(found, quarantined=standing).revised(again)


def verify_organisation(call: Call) -> Verification:
    """Verify the caller's organisation, and stop writes to what is not proven.

    Args:
        call: needs VERIFY.

    Returns:
        What was found.
    """
    call.require_everywhere(Permission.VERIFY)
    found = enforce(call.db, verify(call.db, call.organisation_id), call.asker, call.now)
    counters.verified(sound=found.sound)
    return found
