"""Proof of the ledger: every account recomputed from the charges alone, every chain of decisions walked."""

from datetime import datetime

from app.persistence.engine import Database
from app.persistence.repositories import accounts, entries
from app.service.access import Role
from app.service.call import Call
from app.service.verification.balances import check_balances, check_paths
from app.service.verification.chains import replay
from app.service.verification.findings import Audit, Balance, Fault, Verification, together
from app.service.verification.prices import read_prices

__all__ = ["Fault", "Verification", "enforce", "together", "verify", "verify_organisation"]


def verify(db: Database, organisation_id: str | None = None) -> Verification:
    """Recompute accounts from their charges and compare the bytes; walk each run's chain.

    Args:
        db: the ledger's database.
        organisation_id: whose ledger; None: of every organisation.

    Returns:
        What was found; nothing is changed.
    """
    audit = Audit()
    with db.read(patient=True) as tx:
        read_prices(tx, audit, organisation_id)
        for kept in accounts.everything(tx, organisation_id):
            if kept.account is None:
                detail = f"{kept.path} ({kept.id}): its row cannot be read: {kept.fault}"
                audit.faults.append(Fault(kept.organisation_id, kept.id, None, detail))
            else:
                audit.balances[kept.organisation_id, kept.id] = Balance(kept.account)
        check_paths(tx, audit, organisation_id)
        audit.reservations = entries.kept_reservations(tx, organisation_id)
        for (owner, _), reservation in audit.reservations.items():
            audit.plans.setdefault((owner, reservation.run_id), []).append(reservation)
        for run in entries.kept_runs(tx, organisation_id):
            if (run.organisation_id, run.id) in audit.balances:
                replay(tx, audit, run)
        quarantined = entries.quarantined(tx, organisation_id)
    check_balances(audit)
    return Verification(
        accounts=len(audit.balances),
        runs=audit.runs,
        decisions=audit.decisions,
        reservations=len(audit.reservations),
        charges=audit.charges,
        steps=audit.steps,
        faults=tuple(audit.faults),
        quarantined=quarantined,
        organisation_id=organisation_id,
    )


def enforce(db: Database, found: Verification, now: datetime) -> None:
    """Stop writes to accounts whose balance is not proven, and let them pass again where it is.

    Args:
        db: the ledger's database.
        found: by a verification; where it changes nothing, nothing is written.
        now: in UTC.
    """
    unproven = found.unproven
    changed: dict[entries.Key, str | None] = {
        key: sentence for key, sentence in unproven.items() if found.quarantined.get(key) != sentence
    }
    changed |= dict.fromkeys(found.quarantined.keys() - unproven.keys())

    def write() -> None:
        with db.write() as tx:
            entries.set_quarantine(tx, changed, now)

    if changed:
        db.retried(write)


def verify_organisation(call: Call) -> Verification:
    """Verify the caller's organisation, and stop writes to what is not proven.

    Args:
        call: needs the role admin.

    Returns:
        What was found.
    """
    call.require(Role.ADMIN)
    found = verify(call.db, call.organisation_id)
    enforce(call.db, found, call.now)
    return found
