"""Totals of the charges of runs, for statements."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from app.persistence.repositories.locks import descendant_ids
from app.persistence.tables import decision_events, decisions, dp_events, event_costs, runs

CHARGED = ("admitted", "reported", "forfeited")


@dataclass(frozen=True, slots=True)
class ChargeTotal:
    """An event, its description as JSON, and how often it was charged."""

    fingerprint: str
    canonical_json: str
    count: int


def charged_events(tx: Connection, organisation_id: str, run_id: str, most: int) -> tuple[list[ChargeTotal], int, int]:
    """Count a run's charges: its `most` frequent events, all different events, all steps."""
    times = func.sum(decision_events.c.count).label("times")
    counted = (
        select(decision_events.c.event_fingerprint, times)
        .join(
            decisions,
            (decisions.c.organisation_id == decision_events.c.organisation_id)
            & (decisions.c.run_id == decision_events.c.run_id)
            & (decisions.c.position == decision_events.c.position),
        )
        .where(
            decision_events.c.organisation_id == organisation_id,
            decision_events.c.run_id == run_id,
            decisions.c.outcome.in_(CHARGED),
        )
        .group_by(decision_events.c.event_fingerprint)
        .subquery()
    )
    kinds, steps = tx.execute(select(func.count(), func.coalesce(func.sum(counted.c.times), 0))).one()
    named = (
        select(counted.c.event_fingerprint, counted.c.times, dp_events.c.canonical_json)
        .join(
            dp_events,
            (dp_events.c.organisation_id == organisation_id) & (dp_events.c.fingerprint == counted.c.event_fingerprint),
        )
        .order_by(counted.c.times.desc(), counted.c.event_fingerprint)
        .limit(most)
    )
    found = [ChargeTotal(row.event_fingerprint, row.canonical_json, int(row.times)) for row in tx.execute(named)]
    return found, kinds, int(steps)


def outcomes(tx: Connection, organisation_id: str, run_id: str) -> dict[str, int]:
    """Count a run's decisions by outcome."""
    found = (
        select(decisions.c.outcome, func.count())
        .where(decisions.c.organisation_id == organisation_id, decisions.c.run_id == run_id)
        .group_by(decisions.c.outcome)
    )
    return dict(sorted(tuple(row) for row in tx.execute(found)))


def formula_versions(tx: Connection, organisation_id: str, fingerprints: Sequence[str]) -> list[int]:
    """List the formula versions by which events were priced."""
    found = (
        select(event_costs.c.formula_version)
        .where(event_costs.c.organisation_id == organisation_id, event_costs.c.event_fingerprint.in_(fingerprints))
        .distinct()
    )
    return sorted(tx.execute(found).scalars())


def runs_beneath(tx: Connection, organisation_id: str, account_id: str, most: int) -> tuple[list[str], int]:
    """List the newest charged runs under an account, and count all of them."""
    charged = (
        runs.c.organisation_id == organisation_id,
        runs.c.account_id.in_(descendant_ids(organisation_id, account_id)),
        runs.c.decision_count > 0,
    )
    count = tx.execute(select(func.count()).select_from(runs).where(*charged)).scalar_one()
    found = select(runs.c.account_id).where(*charged).order_by(runs.c.account_id.desc()).limit(most)
    return list(tx.execute(found).scalars()), count
