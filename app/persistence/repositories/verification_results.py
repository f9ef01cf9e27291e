"""Results of verifications."""

import json
from dataclasses import asdict
from typing import Any, Final

from sqlalchemy import Connection, Row, delete, insert, select

from app.ledger.pages import Page, PageRequest
from app.ledger.verification import Discrepancy, QuarantinedAccount, Verification
from app.persistence.repositories import expressions
from app.persistence.repositories.expressions import owned_by
from app.persistence.repositories.keysets import read_page
from app.persistence.tables import verifications

KEPT: Final = 1000
"""Verifications kept of each organisation."""

_IN_REPORT: Final = ("checked", "discrepancies", "quarantined", "quarantined_count")


def add(tx: Connection, verification: Verification) -> None:
    """Add a verification, and delete the oldest beyond `KEPT`."""
    values = asdict(verification)
    report = {name: values.pop(name) for name in _IN_REPORT}
    tx.execute(insert(verifications).values(**values, report=json.dumps(report)))
    mine = owned_by(verifications, verification.organisation_id)
    newest = select(verifications.c.id).where(mine).order_by(verifications.c.id.desc())
    tx.execute(delete(verifications).where(mine, verifications.c.id <= newest.offset(KEPT).limit(1).scalar_subquery()))


def newest_id(tx: Connection, organisation_id: str) -> str | None:
    """Get the greatest id of an organisation's verifications."""
    return expressions.newest_id(tx, verifications, organisation_id, "ver")


def find(tx: Connection, organisation_id: str, verification_id: str) -> Verification | None:
    """Find a verification by id."""
    here = owned_by(verifications, organisation_id, id=verification_id)
    row = tx.execute(select(verifications).where(here)).one_or_none()
    return None if row is None else _verification(row)


def page(tx: Connection, organisation_id: str, request: PageRequest) -> Page[Verification]:
    """List verifications, newest first."""
    found = select(verifications).where(owned_by(verifications, organisation_id))
    return read_page(tx, found, verifications.c.id, request, _verification)


def _verification(row: Row[Any]) -> Verification:
    values = row._asdict()
    report = json.loads(values.pop("report"))
    report["discrepancies"] = tuple(Discrepancy(**each) for each in report["discrepancies"])
    report["quarantined"] = tuple(QuarantinedAccount(**each) for each in report["quarantined"])
    return Verification(**values, **report)
