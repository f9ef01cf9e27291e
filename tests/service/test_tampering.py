"""Rows of a ledger that are changed by hand, and by which words a verification names it."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Connection, delete, insert, select, update

from app.accounting.curves import RdpCurve
from app.persistence.database import Database
from app.persistence.tables import metadata
from app.service.verification.verify import verify
from tests.api.waiting import FITTING, START, Waiting, furnish_office
from tests.conftest import Ledger, furnished
from tests.service import tampering as by_hand
from tests.service.prepared_ledgers import PREPARED, copied
from tests.service.tampering import ALL, MODEL, TEAM, account, run_of, set_account, tampering

Tamper = Callable[[Connection], object]

OTHER, IDLE, PLANNED = f"{ALL}/planned/other", f"{ALL}/planned/idle", f"{ALL}/planned"
UNPRICED = '[{"count":1,"event":{"noise_parameter":0.5,"num_buckets":2,"type":"randomized_response"}}]'
"""It has no bound where a record may be missing."""
LATER = START + timedelta(days=20)
HEAD = b"x" * 32


def wait(ledger: Ledger) -> dict[str, tuple[str, str]]:
    """Plans that wait or have waited, of every kind; the run and the reservation of each, by name."""
    with pytest.MonkeyPatch.context() as patch:
        office = Waiting(ledger, patch, furnish_office(ledger))
        office.allocate("mimic", rule="first_come", shares=[{"account": "mimic/icu-team", "weight": 2.0}])
        first = office.held(FITTING - 80, "first")
        plans = {"held": office.held(80, "held")}
        plans |= {name: office.queued(20, name) for name in ("granted", "claimed", "cancelled")}
        plans["expired"] = office.queued(20, "expired", wait_until=office.until(hours=1))
        plans["waiting"] = office.queued(120, "waiting", wait_until=office.until(days=9))
        plans["waiting"].prioritize(-7)
        plans["cancelled"].cancel()
        office.later(hours=1)
        assert office.expired() == 1
        first.end("void")
        assert office.granted() == 2
        assert plans["claimed"].end("claim").status_code == 200
        return {name: (each.run, each.plan) for name, each in plans.items()}


def later(change: Callable[..., object]) -> Callable[..., Tamper]:
    """Take all that a change needs but the connection."""
    return lambda *where, **values: lambda tx: change(tx, *where, **values)


on, on_balance, curve = later(set_account), later(by_hand.set_balance), later(by_hand.shift_curve)
on_run, on_charge, lost = later(by_hand.set_run), later(by_hand.set_decision), later(by_hand.forget)


def rows(name: str, where: dict[str, object] | None = None, /, **values: object) -> Tamper:
    """Write columns of all rows of a table, or of those with other values, or delete them."""
    table = metadata.tables[name]
    these = [table.c[column] == value for column, value in (where or {}).items()]
    return lambda tx: tx.execute((update(table).values(values) if values else delete(table)).where(*these))


def on_plan(**values: object) -> Tamper:
    """Change the first item of each plan."""
    return rows("reservation_items", {"item": 0}, **values)


def on_item(item: int, /, **values: object) -> Tamper:
    """Change a further event of the decisions; the first is in the decision's own row."""
    return rows("decision_events", {"item": item}, **values)


@later
def forge(tx: Connection, position: int, **values: object) -> None:
    """Change a decision, and make every hash fit."""
    by_hand.set_decision(tx, position, **values)
    by_hand.reseal(tx)


def charged_more(tx: Connection) -> None:
    """Say of the events that they were charged once more."""
    since = json.loads(account(tx, MODEL).uncompacted_charges)
    charged = {event: [count + 1, taken] for event, (count, taken) in since.items()}
    assert charged
    set_account(tx, MODEL, uncompacted_charges=json.dumps(charged))


@later
def renoise(tx: Connection, old: str, new: str) -> None:
    """Write another noise into the text of an event."""
    [row] = [each for each in tx.execute(select(metadata.tables["dp_events"])) if f":{old}" in each.canonical_json]
    text = row.canonical_json.replace(f":{old}", f":{new}")
    rows("dp_events", {"fingerprint": row.fingerprint}, canonical_json=text)(tx)


@later
def reprice(tx: Connection, factor: float) -> None:
    for row in tx.execute(select(metadata.tables["event_costs"])).all():
        curve = RdpCurve.from_bytes(row.curve)
        lower = replace(curve, values=(curve.values / factor).astype(np.int64))
        rows("event_costs", {"event_fingerprint": row.event_fingerprint}, curve=lower.to_bytes())(tx)


def undercut(tx: Connection) -> None:
    for row in tx.execute(select(metadata.tables["event_costs"])).all():
        curve = RdpCurve.from_bytes(row.curve)
        lower = curve.with_exact(curve.exact.with_loss(0, curve.pure // 2))
        rows("event_costs", {"event_fingerprint": row.event_fingerprint}, curve=lower.to_bytes())(tx)


def weights(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Tamper:
    return lambda tx: by_hand.reweigh(tx, TEAM, change)


def at_order(index: float) -> Tamper:
    """Put the whole of the weights at one place of the grid."""
    return weights(lambda frozen: {"indices": [index], "deltas": frozen["deltas"][:1]})


def plan_weights(name: str, change: Callable[[Any], Any]) -> Tamper:
    """Change a part of what is frozen of a budget's plan."""
    return weights(lambda frozen: {"plan": frozen["plan"] | {name: change(frozen["plan"][name])}})


@later
def step_taken_back(tx: Connection, path: str) -> None:
    """Use one step less of each plan."""
    usage = json.loads(account(tx, path).plan_usage)
    for spent, _ in usage.values():
        spent[-1] -= 1
    set_account(tx, path, plan_usage=json.dumps(usage))


def put_elsewhere(tx: Connection) -> None:
    set_account(tx, TEAM, parent_id=account(tx, PLANNED).id)


@later
def without_ancestor(tx: Connection, run: str, ancestor: str) -> None:
    rows("account_ancestors", {"account_id": run_of(tx, run), "ancestor_id": run_of(tx, ancestor)})(tx)


LOG = metadata.tables["audit_entries"]
OWNERS = metadata.tables["organisations"]
OWNER = select(OWNERS.c.id).where(OWNERS.c.name == "hospital").scalar_subquery()


def audit_event(place: int, /, **values: object) -> Tamper:
    return rows("audit_entries", {"organisation_id": OWNER, "position": place}, **values)


def swap_audit_events(tx: Connection) -> None:
    for before, after in ((8, 99), (9, 8), (99, 9)):
        audit_event(before, position=after)(tx)


def append_audit_event(tx: Connection) -> None:
    row = dict(tx.execute(last_audit_event()).mappings().first() or {})
    tx.execute(insert(LOG).values(row | {"position": row["position"] + 1}))


def last_audit_event(*where: Any) -> Any:  # noqa: ANN401 - of SQLAlchemy
    return select(LOG).where(LOG.c.organisation_id == OWNER, *where).order_by(LOG.c.position.desc()).limit(1)


@later
def forgotten(tx: Connection, action: str) -> None:
    """Remove the last audit event of an action."""
    audit_event(tx.execute(last_audit_event(LOG.c.action == action)).one().position)(tx)


def nothing_spent_by_a_part(tx: Connection) -> None:
    set_account(tx, "group/south", uncompacted_charges="{}")  # written as charged since, it would read as before
    by_hand.set_balance(tx, "group/south", spent_curve=b"")


@later
def of_wait(tx: Connection, name: str, **values: object) -> None:
    """Change a plan of the prepared ledger that waits or has waited."""
    rows("reservations", {"id": furnished("sqlite", wait)[0][name][1]}, **values)(tx)


@later
def run_waits(tx: Connection, name: str, status: str) -> None:
    rows("runs", {"account_id": furnished("sqlite", wait)[0][name][0]}, status=status)(tx)


NOT_RECORDED = "audit event 9 (budget.created) is not the recorded one"
FINGERPRINT, PRICE, HELD = "has another fingerprint", "is not what", "reserved curve differs"
NOT_PLANNED, NO_ORDERS = "are not those of its planned workload", "name orders that there are not"
UNDER, LIMIT = "is not what was charged under it", "its limit is not the one under"
WAIT, STATUS, ALLOCATION = "the wait of reservation", "audit events", "(pop_"
MORE_THAN_DELTA = "its filter weights sum to more than its delta"
SECOND_BUDGET = metadata.tables["run_budgets"].c.position

TAMPERINGS: dict[str, dict[str, tuple[Tamper, str]]] = {
    "charged": {
        "a run's curve lowered": (curve(MODEL, -1), MODEL),
        "a run's curve raised": (curve(MODEL, 1), MODEL),
        "a budget's curve raised": (curve(TEAM, 10**12), TEAM),
        "a population's curve emptied": (on_balance(ALL, spent_curve=bytes(8 * 1387)), ALL),
        "an idle run's curve raised": (curve(IDLE, 1), IDLE),
        "charges since counted up": (charged_more, MODEL),
        "charges since forgotten": (on(MODEL, uncompacted_charges="{}"), MODEL),
        "charges since broken": (on(MODEL, uncompacted_charges="[1]"), MODEL),
        "a charge since of no event": (on(MODEL, uncompacted_charges='{"x": [1, 1]}'), MODEL),
        "a charge since of an unknown event": (on(MODEL, uncompacted_charges=f'{{"{"f" * 64}": [1, 1]}}'), MODEL),
        "a balance forgotten": (rows("balances"), ALL),
        "a charge's count lowered": (on_charge(2, event_count=1), "its charges are 1."),
        "a further charge elsewhere": (on_item(2, item=5), "decision_events.item"),
        "the further charges deleted": (rows("decision_events"), MODEL),
        "the last charge deleted": (lost(4), "4 decisions are kept, but 5 were made."),
        "a charged event made noisier": (renoise("60.0", "61.0"), FINGERPRINT),
        "an event without a charge made noisier": (renoise("70.0", "700.0"), FINGERPRINT),
        "an event's text respelled": (renoise("60.0", " 60.0"), "event "),
        "an event's text broken": (renoise("60.0", "x"), "it cannot be priced"),
        "a price a little lower": (reprice(1.000001), PRICE),
        "a price of nothing": (reprice(1e30), PRICE),
        "half of a pure loss": (undercut, PRICE),
        "a price with a delta": (rows("event_costs", curve_delta=10**9), PRICE),
        "the next step put back": (on_run(MODEL, next_step=0), "its next step is 0."),
        "an idle run's next step": (on_run(IDLE, next_step=1), "its next step is 1."),
        "a decision's number of steps": (on_charge(2, step_count=3), "that it takes 3 steps"),
        "a forged head": (on_run(MODEL, chain_head=HEAD), "its chain ends at decision 4, but not"),
        "a forged head of no decisions": (on_run(IDLE, chain_head=HEAD), "before the first"),
        "steps that overlap": (forge(2, first_step=3), "begins at step 3; the steps before it end at 4."),
        "steps with a gap": (forge(2, first_step=5), "begins at step 5; the steps before it end at 4."),
        "an attempt not begun": (forge(2, attempt=2), "attempt 2 does not follow attempt 1 at step 4."),
        "an order that runs backwards": (
            forge(2, population_version=0),
            "on an earlier state of its population than the one before.",
        ),
        "weights over delta": (weights(lambda at: {"deltas": [each * 1.1 for each in at["deltas"]]}), MORE_THAN_DELTA),
        "a reserve that is no remainder": (weights(lambda frozen: {"reserve": frozen["reserve"] / 2}), NOT_PLANNED),
        "weights at other orders": (weights(lambda at: {"indices": [each + 1 for each in at["indices"]]}), NOT_PLANNED),
        "weights forgotten": (on(TEAM, filter_weights=None), "weights are not frozen"),
        "weights after the last order": (at_order(9999), NO_ORDERS),
        "weights before the first order": (at_order(-1), NO_ORDERS),
        "weights at half an order": (at_order(7.5), NO_ORDERS),
        "a limit raised": (on(TEAM, limit_value=50.0), LIMIT),
        "a limit raised by a bit": (on(TEAM, limit_value=float(np.nextafter(1.0, 2))), f"{LIMIT} which decisions"),
        "a delta raised": (on(TEAM, limit_delta=0.4), "that its organisation's audit events"),
        "a run's limit taken away": (
            on(OTHER, limit_unit=None, limit_value=None, limit_delta=None),
            "and yet it has the weights",
        ),
        "something held": (
            lambda tx: by_hand.set_balance(tx, TEAM, held_curve=by_hand.balance(tx, TEAM).spent.to_bytes()),
            HELD,
        ),
        "a delta spent": (on_balance(TEAM, spent_delta=1), "its spent curve is not the sum"),
        "a delta held": (on_balance(TEAM, held_delta=1), HELD),
        "a plan without a price": (on(ALL, planned_events=UNPRICED), "planned_sha256"),
        "a curve of another length": (on_balance(TEAM, spent_curve=bytes(8), held_curve=bytes(8)), TEAM),
        "an account forgotten": (rows("accounts", {"path": MODEL}), "it was opened, and its row is missing, or"),
        "an ancestor left out": (without_ancestor(MODEL, ALL), "the accounts that a charge to it"),
        "a range of decisions forgotten": (rows("decision_ranges"), "the ranges of its decisions"),
        "a range of decisions moved": (rows("decision_ranges", first_position=1), "are wrong at decision 0."),
        "an attempt forgotten": (rows("attempts"), "its attempts are [], but its current one is 1."),
        "an attempt begun later": (rows("attempts", first_step=1), MODEL),
        "another attempt": (on_run(MODEL, attempt=2), "its attempts are [1], but its current one is 2."),
        "an unknown reservation": (
            on_run(MODEL, reservation_id="res_x"),
            "names the reservation res_x, but its active",
        ),
        "a budget put elsewhere": (put_elsewhere, "it is not as it was opened: parent"),
        "a run's status": (rows("runs", status="completed"), "audit events leave it active"),
        "an audit event's actor": (audit_event(9, actor="key_other"), NOT_RECORDED),
        "an audit event left out": (audit_event(9), "audit event 9 is missing"),
        "two audit events swapped": (swap_audit_events, "audit event 8 (budget.created) is not the recorded one"),
        "an audit event put in": (append_audit_event, "(run.created) is not the recorded one"),
    },
    "refused": {"a limit that a refusal names": (on(ALL, limit_value=2.0), LIMIT)},
    "reserved": {
        "a population's held curve": (curve(ALL, -1, "held"), HELD),
        "a budget's held curve": (curve(TEAM, 1, "held"), HELD),
        "a reserved curve": (rows("reservations", reserved_curve=b""), "is not that of its events"),
        "a plan made longer": (on_plan(count=6), "is not that of its events"),
        "more used than charged": (on_plan(authorized_count=3), UNDER),
        "less used than charged": (on_plan(authorized_count=0), UNDER),
        "a reservation forgotten": (rows("reservations"), "that the run has not"),
        "a plan ended": (rows("reservations", status="committed", steps_executed=2), "but its active one is None."),
        "a plan ended with more": (rows("reservations", status="committed", steps_executed=3), "attests 3 steps; 2"),
        "a plan voided": (rows("reservations", status="voided"), "steps were charged under it"),
        "a plan forfeited": (rows("reservations", status="forfeited"), "is not what was forfeited"),
        "a run without its plan": (on_run(MODEL, reservation_id=None), "it names the reservation None, but"),
        "a charge out of its plan": (on_charge(1, reservation_id=None), UNDER),
        "charges under another plan": (rows("decisions", reservation_id="res_x"), "that the run has not"),
    },
    "lowered": {
        "revoked steps given back": (on_plan(revoked_count=0), "active plans may take more than its limit allows"),
        "fewer revoked steps": (on_plan(revoked_count=1), "differs from the audit log of lowered limits."),
    },
    "composed": {
        "parts that are added up": (on("group", max_partitions_per_unit=None), "group ("),
        "more parts that count": (on("group", max_partitions_per_unit=2), "group ("),
        "a sum made parallel": (on("clinic", max_partitions_per_unit=1), "clinic ("),
        "an attestation forgotten": (rows("partition_attestations"), "no attestation says"),
        "a second budget forgotten": (rows("run_budgets", {"position": 1}), "group/south/both"),
        "an ancestor left out": (without_ancestor("group/south/both", "clinic"), "group/south/both"),
        "another first budget": (rows("run_budgets", position=9 - SECOND_BUDGET), "the first budget that it"),
        "nothing spent by the whole": (on_balance("group", spent_curve=b"", held_curve=b""), "that have lost most"),
        "nothing held by the whole": (on_balance("group", held_curve=b""), "group ("),
        "nothing spent by a part": (nothing_spent_by_a_part, "group/south ("),
    },
    "planned": {
        "more steps": (plan_weights("steps", lambda steps: steps + 1), "its limit does not allow"),
        "more delta for the plan": (plan_weights("delta", lambda _: 9.9e-6), "sum to more than its delta"),
        "another share": (plan_weights("share", lambda _: 0.95), NOT_PLANNED),
        "steps taken back": (step_taken_back(TEAM), "its spent curve is not the sum of its charges"),
        "steps of the population taken back": (step_taken_back(ALL), "its spent curve is not the sum of"),
        "usage forgotten": (on(TEAM, plan_usage="{}"), "it does not count what it uses up of the plan of"),
        "a run's usage forgotten": (on(f"{TEAM}/own", plan_usage="{}"), "it does not count what it uses up"),
        "a plan taken away": (on(TEAM, planned_events="[]"), "planned_sha256"),
    },
    "repeats": {
        "another first index": (on_item(1, item=7), MODEL),
        "a first index below none": (on_item(1, item=-1), MODEL),
        "another event": (on_item(1, event_fingerprint="0" * 64), MODEL),
        "a row of items deleted": (on_item(1), MODEL),
        "all rows of items deleted": (rows("decision_events"), MODEL),
    },
    "waiting": {
        "a waiting plan is active": (of_wait("waiting", status="active", granted_at=LATER), WAIT),
        "it is active at once": (of_wait("waiting", status="active", wait_until=None, priority=0), WAIT),
        "it was cancelled": (of_wait("waiting", status="cancelled", closed_at=LATER), WAIT),
        "it has expired": (of_wait("waiting", status="expired", closed_at=LATER), WAIT),
        "it was voided": (of_wait("waiting", status="voided", closed_at=LATER), WAIT),
        "it waits longer": (of_wait("waiting", wait_until=LATER), WAIT),
        "it waits in another place": (of_wait("waiting", priority=100), WAIT),
        "it is deleted": (of_wait("waiting"), "has waited by"),
        "a granted plan waits": (of_wait("granted", status="waiting", granted_at=None), WAIT),
        "it was granted and voided": (of_wait("granted", status="voided", closed_at=LATER), "granted"),
        "it was granted later": (of_wait("granted", granted_at=LATER), WAIT),
        "it was not granted but held": (of_wait("granted", granted_at=None, wait_until=None), WAIT),
        "a claimed plan had another priority": (of_wait("claimed", priority=1), WAIT),
        "a claimed plan is deleted": (of_wait("claimed"), "has waited by"),
        "a cancelled plan waits": (of_wait("cancelled", status="waiting", closed_at=None), WAIT),
        "a cancelled plan has expired": (of_wait("cancelled", status="expired"), WAIT),
        "a cancelled plan is deleted": (of_wait("cancelled"), "has waited by"),
        "an expired plan was active": (of_wait("expired", status="active", closed_at=None, granted_at=LATER), WAIT),
        "a plan held at once has waited": (of_wait("held", wait_until=LATER), WAIT),
        "a plan held at once waits": (of_wait("held", status="waiting", wait_until=LATER), WAIT),
        "a run that waits is active": (run_waits("waiting", "active"), STATUS),
        "a run that was granted waits": (run_waits("granted", "waiting"), STATUS),
        "a run that was not granted waits": (run_waits("expired", "waiting"), STATUS),
        "a population without its allocation": (on(ALL, allocation=None), ALLOCATION),
        "a population's allocation never changed": (on(ALL, allocation_revision=0), ALLOCATION),
        "a plan that was never queued": (forgotten("reservation.queued"), "is missing"),
        "a plan that was never granted": (forgotten("reservation.granted"), "is missing"),
        "an allocation that was never replaced": (forgotten("allocation.replaced"), "is missing"),
    },
}


PREPARED["waiting"] = wait


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A copy of the prepared ledger that the test's parameter `name` names."""
    with copied(request.node.callspec.params["name"], tmp_path) as opened:
        yield opened


@pytest.mark.parametrize("name", PREPARED)
def test_prepared_ledger_is_sound(database: Database, name: str) -> None:
    found = verify(database)
    assert (found.problems, found.unproven) == ((), {}), name


@pytest.mark.parametrize(("name", "what"), [(name, what) for name, table in TAMPERINGS.items() for what in table])
def test_tampered_rows_are_named(database: Database, name: str, what: str) -> None:
    tamper, named = TAMPERINGS[name][what]
    with tampering(database) as tx:
        tamper(tx)
    found = verify(database)
    assert any(named in problem for problem in found.problems), found.problems
    assert str(found.discrepancies[0].organisation_id).startswith("org_")
