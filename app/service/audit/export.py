"""Export charges as JSON lines, for verification without this ledger."""

import json
from base64 import b64encode
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from operator import itemgetter
from typing import Any, Final

from sqlalchemy import Connection, Row

from app.accounting.curves import EXHAUSTED
from app.ledger.accounts.account import Account, AccountKind
from app.ledger.audit import canonical_audit_entry
from app.ledger.errors import InvalidInputError, NotFoundError
from app.ledger.runs.decisions import canonical_entry
from app.ledger.runs.run import declaration_of
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import accounts, audit, dp_events, organisations, raw_rows
from app.persistence.repositories.account_values import planned_text, weights_facts
from app.persistence.repositories.raw_rows import StoredReservation
from app.persistence.tolerant_rows import DamagedCell, refuse
from app.service.verification.audit_replay import AuditState, RecordedAccount, replay_audit_log

Damaged = Mapping[object, DamagedCell]
"""Unreadable cells of accounts, by account id and by path."""

Owned = tuple[str, Account]
"""The id of an organisation, and an account of it."""

FORMAT: Final = 1
"""Version of the format; see docs/reference/export-format.md."""


def export(
    db: Database,
    now: datetime,
    *,
    run: str | None = None,
    population: str | None = None,
    organisation: str | None = None,
) -> Generator[str, None, None]:
    """Export the data from which a stand-alone script recomputes every balance and chain.

    Args:
        db: the ledger's database.
        now: in UTC.
        run: id of a run; exports its chain, its account, and its ancestors for their limits.
        population: id or name; exports everything under it, and the other accounts that its runs charge.
        organisation: id or name; None: any that has the run or population.

    Yields:
        One JSON object per line; docs/reference/export-format.md describes them.

    Raises:
        InvalidInputError: not exactly one of `run` and `population` is given, or several organisations have it.
        NotFoundError: no such run or population.
        LedgerUnavailableError: an account's row cannot be read.
    """
    if (run is None) == (population is None):
        raise InvalidInputError("Name either a run or a population: --run ID, or --population ID (or its name).")
    with db.read(ALL_TENANTS, patient=True) as tx:
        owner = None if organisation is None else _owner(tx, organisation)
        damaged: dict[object, DamagedCell] = {}

        def note(cell: DamagedCell) -> None:
            damaged[cell.row["id"]] = damaged[cell.row["path"]] = cell

        kept = [(organisation_id, record.account) for organisation_id, record, _ in accounts.list_all(tx, owner, note)]
        root = _root(kept, damaged, run, population)
        written = 0
        for line in _lines(tx, kept, root, damaged, now):
            yield _json(line) if isinstance(line, dict) else line
            written += 1
        yield _json({"type": "end", "lines": written + 1})


def _owner(tx: Connection, organisation: str) -> str:
    found = organisations.find_organisation(tx, organisation)
    if found is None:
        raise NotFoundError(f"There is no organisation {organisation!r}; give its id or its name.")
    return found


def _root(kept: Iterable[Owned], damaged: Damaged, run: str | None, population: str | None) -> Owned:
    if run is not None:
        found = [one for one in kept if one[1].id == run and one[1].kind is AccountKind.RUN]
    else:
        named = [one for one in kept if population in {one[1].id, one[1].path}]
        found = [one for one in named if one[1].kind is AccountKind.POPULATION]
    if not found:
        _require_readable(damaged, [run or population])
    wanted = f"run {run!r}" if run is not None else f"population {population!r}"
    if not found:
        raise NotFoundError(f"There is no {wanted}; give its id, or a population's name.")
    if len(found) > 1:
        owners = ", ".join(sorted(owner for owner, _ in found))
        raise InvalidInputError(f"Several organisations have a {wanted}: {owners}. Name one with --org.")
    return found[0]


def _lines(
    tx: Connection, kept: Iterable[Owned], root: Owned, damaged: Damaged, now: datetime
) -> Iterator[dict[str, Any] | str]:
    owner, top = root
    paths = {key: [name for name, _ in path] for key, path in raw_rows.ancestors(tx, owner).items()}
    subtree = {account_id for (_, account_id), path in paths.items() if top.id in path}
    runs = {run.account_id: run for run in raw_rows.list_runs(tx, owner).values() if run.account_id in subtree}
    attempts = raw_rows.list_attempts(tx, owner)
    budgets = raw_rows.charged_budgets(tx, owner)
    above = {account_id for run_id in runs for account_id in paths[owner, run_id]} - subtree
    _require_readable(damaged, subtree | above)
    chosen = [account for of, account in kept if of == owner and account.id in subtree | above]
    reservations = [one for one in raw_rows.list_reservations(tx, owner).values() if one.run_id in subtree]
    whole = top.kind is AccountKind.POPULATION
    yield {
        "type": "header",
        "format": FORMAT,
        "organisation": owner,
        "scope": "population" if whole else "run",
        "id": top.id,
        "exported_at": now.isoformat(timespec="microseconds"),
        "exhausted": EXHAUSTED,
    }
    yield from _events(tx, owner, chosen, runs, reservations)
    yield from _plan_costs(tx, owner, chosen, _mentioned(tx, owner, runs, reservations))
    state = replay_audit_log(audit.all_entries(tx, owner)).get(owner, AuditState())
    for account in chosen:
        charged = budgets.get((owner, account.id), [account.parent_id] if account.parent_id else [])
        limits = _limits(account, state.accounts.get(account.id))
        tree = {"accounts": paths[owner, account.id], "parents": charged}
        yield _account(account, tree, limits, complete=account.id in subtree)
    for run_id, run in runs.items():
        yield _run(run, attempts.get((owner, run_id), {}))
    for reservation in reservations:
        reserved = raw_rows.reserved(tx, owner, reservation.id)
        assert reserved is not None, "one that cannot be read ends the export"
        yield _reservation(reservation, reserved)
    if whole:  # the audit log is the organisation's: a run's part of it proves nothing
        for act in audit.all_entries(tx, owner):
            yield f'{{"type":"audit_event","hash":"{act.entry_hash.hex()}","entry":{canonical_audit_entry(act)}}}'
    for run_id in runs:
        for entry in raw_rows.entries(tx, owner, run_id):
            # Write the hashed text itself, so that no other number format can change it.
            yield f'{{"type":"decision","hash":"{entry.entry_hash.hex()}","entry":{canonical_entry(entry.entry)}}}'


def _require_readable(damaged: Damaged, wanted: Iterable[str | None]) -> None:
    """Raise LedgerUnavailableError if the row of an account cannot be read."""
    for name in wanted:
        if name in damaged:
            refuse(damaged[name])


def _events(
    tx: Connection,
    owner: str,
    chosen: Iterable[Account],
    runs: Iterable[str],
    reservations: Iterable[StoredReservation],
) -> Iterator[dict[str, Any]]:
    """List the events in use, and their costs under the accounts' relations and grids."""
    mentioned = _mentioned(tx, owner, runs, reservations)
    for _, fingerprint, canonical in sorted(dp_events.descriptions(tx, owner)):
        if fingerprint in mentioned:
            yield {"type": "event", "fingerprint": fingerprint, "canonical": canonical.decode()}
    rules = {(account.relation, account.grid_version) for account in chosen}
    for price in dp_events.list_all(tx, owner):
        if price.fingerprint in mentioned and (price.prices.relation, price.prices.grid_version) in rules:
            yield {
                "type": "price",
                "fingerprint": price.fingerprint,
                "neighboring_relation": str(price.prices.relation),
                "grid_version": price.prices.grid_version,
                "formula_version": price.formula_version,
                "curve": _base64(price.curve.to_bytes()),
                "delta": price.curve.delta,
            }


def _mentioned(tx: Connection, owner: str, runs: Iterable[str], reservations: Iterable[StoredReservation]) -> set[str]:
    """Collect the fingerprints of the events that were charged, refused or reserved."""
    mentioned = {fingerprint for one in reservations for fingerprint in one.items}
    for run_id in runs:
        mentioned |= raw_rows.mentioned_events(tx, owner, run_id)
    return mentioned


def _plan_costs(
    tx: Connection, owner: str, chosen: Iterable[Account], mentioned: Iterable[str]
) -> Iterator[dict[str, Any]]:
    """List what one repetition of each event uses up of the plans of accounts."""
    events = dp_events.find_events(tx, owner, mentioned)
    for account in chosen:
        if account.plan is not None:
            for key, event in sorted(events.items(), key=itemgetter(0)):
                used = account.plan.workload.cost(event)
                yield {"type": "plan_cost", "account": account.id, "fingerprint": key, "used": used}


def _limits(account: Account, recorded: RecordedAccount | None) -> list[dict[str, float] | None]:
    """List the limits in order, the present one last."""
    before = [] if recorded is None else [period.limit for period in recorded.limits[:-1]]
    limits = [*before, account.limit]
    return [None if limit is None else limit.facts() for limit in limits]


def _account(
    account: Account, tree: dict[str, list[str]], limits: list[dict[str, float] | None], *, complete: bool
) -> dict[str, Any]:
    return {
        "type": "account",
        "id": account.id,
        "kind": str(account.kind),
        "path": account.path,
        **tree,
        "composition": "sequential" if account.partitions_per_unit is None else "parallel",
        "max_partitions_per_unit": account.partitions_per_unit,
        "complete": complete,
        "neighboring_relation": str(account.relation),
        "grid_version": account.grid_version,
        "limits": limits,
        "planned": json.loads(planned_text(account.planned)),
        "weights": weights_facts(account.weights),
        "spent": _base64(account.spent.to_bytes()),
        "spent_delta": account.spent.delta,
        "plan_usage": {
            owner: [counts, account.held.used.get(owner, [0] * len(counts))]
            for owner, counts in account.spent.used.items()
        },
        "held": _base64(account.held.to_bytes()),
        "held_delta": account.held.delta,
    }


def _run(run: Row[Any], attempts: Mapping[int, int]) -> dict[str, Any]:
    return {
        "type": "run",
        "id": run.account_id,
        "status": run.status,
        "attempt": run.attempt,
        "attempts": [{"attempt": number, "first_step": attempts[number]} for number in sorted(attempts)],
        "next_step": run.next_step,
        "decisions": run.decision_count,
        "chain_head": run.chain_head.hex(),
        "reservation": run.reservation_id,
        **asdict(declaration_of(run)),
    }


def _reservation(reservation: StoredReservation, reserved: tuple[bytes, int]) -> dict[str, Any]:
    curve, delta = reserved
    return {
        "type": "reservation",
        "id": reservation.id,
        "run": reservation.run_id,
        "attempt": reservation.attempt,
        "status": reservation.status,
        "steps_executed": reservation.steps_executed,
        "reserved": _base64(curve),
        "reserved_delta": delta,
        "items": [
            {
                "fingerprint": fingerprint,
                "count": count,
                "used": used,
                "revoked": reservation.revoked.get(fingerprint, 0),
            }
            for fingerprint, (count, used) in reservation.items.items()
        ],
    }


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


def _json(line: dict[str, Any]) -> str:
    return json.dumps(line, separators=(",", ":"), allow_nan=False)
