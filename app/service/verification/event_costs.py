"""Check the stored costs of events."""

import hashlib

import numpy as np
from numpy.typing import ArrayLike

from app.accounting.events import event_from_canonical
from app.accounting.rdp import FORMULA_VERSION, event_curve
from app.ledger.verifications import Discrepancy
from app.persistence.repositories import dp_events
from app.persistence.repositories.dp_events import StoredCost
from app.persistence.tolerant import DAMAGED
from app.service.verification.report import VerificationContext

TOLERANCE = 1e-9
"""Relative tolerance of costs between processors and library versions."""


def read_prices(audit: VerificationContext, organisation_id: str | None) -> None:
    """Collect the sound costs in `audit`, and report the others."""
    for owner, key, description in dp_events.descriptions(audit.tx, organisation_id, audit.report):
        if hashlib.sha256(description).hexdigest() != key:
            detail = f"event {key[:12]}: its description {description.decode()!a} has another fingerprint."
            audit.discrepancies.append(Discrepancy(owner, None, None, detail))
    for stored in dp_events.list_all(audit.tx, organisation_id, audit.report):
        problem = price_problem(stored)
        if problem:
            detail = f"event {stored.fingerprint[:12]}: {problem}"
            audit.discrepancies.append(Discrepancy(stored.prices.organisation_id, None, None, detail))
        else:
            audit.sound.add((stored.prices, stored.fingerprint))


def price_problem(stored: StoredCost) -> str | None:
    """Recompute a stored cost; return the discrepancy, or None."""
    if stored.formula_version != FORMULA_VERSION:
        return f"its price is of the formulas {stored.formula_version}, of which this version knows nothing."
    relation, grid_version = stored.prices.relation, stored.prices.grid_version
    try:
        fresh = event_curve(event_from_canonical(stored.canonical_json), relation, grid_version)
    except DAMAGED as error:
        return f"under {relation} and grid {grid_version} it cannot be priced: {error}"
    same_grid = fresh.values.shape == stored.curve.values.shape
    if same_grid and all(
        _agree(now, kept) for now, kept in ((fresh.values, stored.curve.values), (fresh.delta, stored.curve.delta))
    ):
        return None
    return f"its price under {relation} and grid {grid_version} is not what {stored.canonical_json.decode()} costs."


def _agree(fresh: ArrayLike, stored: ArrayLike) -> bool:
    """Whether two costs are equal up to the tolerance."""
    now, kept = np.asarray(fresh, float), np.asarray(stored, float)
    slack = TOLERANCE * now + 2
    return bool((np.abs(kept - now) <= slack).all())
