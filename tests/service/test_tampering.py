"""What is changed in the rows of a ledger by hand, and by which words a verification names it."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Connection, delete, insert, select, update

from app.persistence.database import Database
from app.persistence.tables import (
    account_ancestors,
    accounts,
    attempts,
    audit_entries,
    balances,
    decision_events,
    decision_ranges,
    decisions,
    event_costs,
    organisations,
    partition_attestations,
    reservations,
    run_budgets,
    runs,
)
from app.service.verification import verify
from tests.service.prepared_ledgers import PREPARED, copied
from tests.service.tampering import (
    ALL,
    MODEL,
    TEAM,
    account,
    forget,
    renoise,
    reprice,
    reseal,
    reweigh,
    set_account,
    set_attempt,
    set_balance,
    set_decision,
    set_item,
    set_plan,
    set_reservation,
    set_run,
    shift_curve,
    shift_since,
    shift_weights,
    tampering,
    whole,
)

Tamper = Callable[[Connection], object]

OTHER, IDLE, PLANNED = f"{ALL}/planned/other", f"{ALL}/planned/idle", f"{ALL}/planned"
UNPRICED = [{"event": {"type": "randomized_response", "noise_parameter": 0.5, "num_buckets": 2}, "count": 1}]
"""It has no bound where a record may be missing."""


def uncompacted(path: str, text: str) -> Tamper:
    return lambda tx: set_account(tx, path, uncompacted_charges=text)


def rows(table: Any, **values: object) -> Tamper:  # noqa: ANN401 - a table
    """Write columns of all rows of a table, or delete them."""
    return lambda tx: tx.execute(update(table).values(values) if values else delete(table))


def reweighed(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Tamper:
    return lambda tx: reweigh(tx, TEAM, change)


def at_order(index: float) -> Tamper:
    """Put the whole of the weights at one place of the grid."""
    return reweighed(lambda weights: {"indices": [index], "deltas": weights["deltas"][:1]})


def forge(position: int, **values: object) -> Tamper:
    """Change a decision, and make every hash fit."""

    def change(tx: Connection) -> None:
        set_decision(tx, position, **values)
        reseal(tx)

    return change


def leave_out_ancestor(tx: Connection, run: str, ancestor: str) -> None:
    this = account_ancestors.c.account_id == account(tx, run).id
    tx.execute(delete(account_ancestors).where(this, account_ancestors.c.ancestor_id == account(tx, ancestor).id))


def plan_weights(**changes: Any) -> Tamper:  # noqa: ANN401 - JSON
    """Change what is frozen of a budget's plan."""
    return reweighed(
        lambda weights: {
            "plan": weights["plan"]
            | {name: value(weights["plan"]) if callable(value) else value for name, value in changes.items()}
        }
    )


def plan_usage(path: str, *, emptied: bool) -> Tamper:
    """Forget what was used of plans, or take one step back."""

    def change(tx: Connection) -> None:
        usage = json.loads(account(tx, path).plan_usage)
        for spent, _ in usage.values():
            spent[-1] -= 1
        set_account(tx, path, plan_usage="{}" if emptied else json.dumps(usage))

    return change


def audit_event(place: int, /, **values: object) -> Tamper:
    """Change an audit event, or delete it."""
    this = audit_entries.c.position == place
    where = (_owned(audit_entries), this)
    return lambda tx: tx.execute(
        update(audit_entries).where(*where).values(values) if values else delete(audit_entries).where(*where)
    )


def _owned(table: Any) -> Any:  # noqa: ANN401 - a table
    return (
        table.c.organisation_id
        == select(organisations.c.id).where(organisations.c.name == "hospital").scalar_subquery()
    )


def swap_audit_events(tx: Connection) -> None:
    for before, after in ((8, 99), (9, 8), (99, 9)):
        audit_event(before, position=after)(tx)


def append_audit_event(tx: Connection) -> None:
    last = select(audit_entries).where(_owned(audit_entries)).order_by(audit_entries.c.position.desc())
    row = dict(tx.execute(last).mappings().first() or {})
    tx.execute(insert(audit_entries).values(row | {"position": row["position"] + 1}))


def nothing_spent_by_a_part(tx: Connection) -> None:
    uncompacted("group/south", "{}")(tx)  # written as what was charged since, it would read as before
    set_balance(tx, "group/south", spent_curve=b"")


FIRST_OF_OTHER = "the first budget that it charges"
NOT_RECORDED = "audit event 9 (budget.created) is not the recorded one"

TAMPERINGS: dict[str, dict[str, tuple[Tamper, str]]] = {
    "charged": {
        "a run's curve lowered": (lambda tx: shift_curve(tx, MODEL, -1), MODEL),
        "a run's curve raised": (lambda tx: shift_curve(tx, MODEL, 1), MODEL),
        "a budget's curve lowered": (lambda tx: shift_curve(tx, TEAM, -1), TEAM),
        "a budget's curve raised": (lambda tx: shift_curve(tx, TEAM, 10**12), TEAM),
        "a population's curve emptied": (lambda tx: set_balance(tx, ALL, spent_curve=bytes(8 * 1387)), ALL),
        "an idle run's curve raised": (lambda tx: shift_curve(tx, IDLE, 1), IDLE),
        "charges since counted up": (lambda tx: shift_since(tx, MODEL, 1), MODEL),
        "charges since forgotten": (uncompacted(MODEL, "{}"), MODEL),
        "charges since broken": (uncompacted(MODEL, "[1]"), MODEL),
        "a charge since of what is no event": (uncompacted(MODEL, '{"x": [1, 1]}'), MODEL),
        "a charge since of an unknown event": (uncompacted(MODEL, json.dumps({"f" * 64: [1, 1]})), MODEL),
        "a balance forgotten": (rows(balances), ALL),
        "a charge's count lowered": (lambda tx: set_decision(tx, 2, event_count=1), "its charges are 1."),
        "a further charge elsewhere": (lambda tx: set_item(tx, 3, 2, item=5), "decision_events.item"),
        "the further charges deleted": (rows(decision_events), MODEL),
        "the last charge deleted": (lambda tx: forget(tx, 4), "4 decisions are kept, but 5 were made."),
        "a charged event made noisier": (lambda tx: renoise(tx, "60.0", "61.0"), "has another fingerprint"),
        "an event without a charge made noisier": (lambda tx: renoise(tx, "70.0", "700.0"), "has another fingerprint"),
        "an event's text respelled": (lambda tx: renoise(tx, "60.0", " 60.0"), "event "),
        "an event's text broken": (lambda tx: renoise(tx, "60.0", "x"), "it cannot be priced"),
        "a price a little lower": (lambda tx: reprice(tx, 1.000001), "is not what"),
        "a price of nothing": (lambda tx: reprice(tx, 1e30), "is not what"),
        "a price with a delta": (rows(event_costs, curve_delta=10**9), "is not what"),
        "the next step put back": (lambda tx: set_run(tx, MODEL, next_step=0), "its next step is 0."),
        "an idle run's next step": (lambda tx: set_run(tx, IDLE, next_step=1), "its next step is 1."),
        "a decision's number of steps": (lambda tx: set_decision(tx, 2, step_count=3), "that it takes 3 steps"),
        "a forged head": (lambda tx: set_run(tx, chain_head=b"x" * 32), "its chain ends at decision 4, but not"),
        "a forged head of no decisions": (lambda tx: set_run(tx, IDLE, chain_head=b"x" * 32), "before the first"),
        "steps that overlap": (forge(2, first_step=3), "begins at step 3; the steps before it end at 4."),
        "steps with a gap": (forge(2, first_step=5), "begins at step 5; the steps before it end at 4."),
        "an attempt not begun": (forge(2, attempt=2), "attempt 2 does not follow attempt 1 at step 4."),
        "weights over delta": (
            reweighed(lambda weights: {"deltas": [delta * 1.1 for delta in weights["deltas"]]}),
            "its filter weights sum to more than its delta",
        ),
        "a reserve that is no remainder": (
            reweighed(lambda weights: {"reserve": weights["reserve"] / 2}),
            "are not those of its planned workload",
        ),
        "weights at other orders": (lambda tx: shift_weights(tx, TEAM), "are not those of its planned workload"),
        "weights forgotten": (lambda tx: set_account(tx, TEAM, filter_weights=None), "weights are not frozen"),
        "weights after the last order": (at_order(9999), "name orders that there are not"),
        "weights before the first order": (at_order(-1), "name orders that there are not"),
        "weights at half an order": (at_order(7.5), "name orders that there are not"),
        "a limit raised": (lambda tx: set_account(tx, TEAM, epsilon_limit=50.0), "its limit is not the one under"),
        "a limit raised by a bit": (
            lambda tx: set_account(tx, TEAM, epsilon_limit=float(np.nextafter(1.0, 2))),
            "its limit is not the one under which decisions were made: epsilon 1.0 at delta 1e-05",
        ),
        "a delta raised": (lambda tx: set_account(tx, TEAM, delta_limit=0.4), "that its organisation's audit events"),
        "a run's limit taken away": (
            lambda tx: set_account(tx, OTHER, epsilon_limit=None, delta_limit=None),
            "it has no limit of its own, and yet it has the weights of a filter.",
        ),
        "something held": (lambda tx: set_balance(tx, TEAM, held_curve=whole(tx, TEAM)), "the reserved curve differs"),
        "a delta spent": (lambda tx: set_balance(tx, TEAM, spent_delta=1), "its spent curve is not the sum"),
        "a delta held": (lambda tx: set_balance(tx, TEAM, held_delta=1), "the reserved curve differs"),
        "a plan without a price": (
            lambda tx: set_account(tx, ALL, planned_events=json.dumps(UNPRICED)),
            "planned_sha256",
        ),
        "a curve of another length": (
            lambda tx: set_balance(tx, TEAM, spent_curve=bytes(8), held_curve=bytes(8)),
            TEAM,
        ),
        "an account forgotten": (
            lambda tx: tx.execute(delete(accounts).where(accounts.c.path == MODEL)),
            "it was opened, and its row is missing, or cannot be read.",
        ),
        "an ancestor left out": (lambda tx: leave_out_ancestor(tx, MODEL, ALL), "the accounts that a charge to it"),
        "a range of decisions forgotten": (rows(decision_ranges), "the ranges of its decisions"),
        "a range of decisions moved": (rows(decision_ranges, first_position=1), "are wrong at decision 0."),
        "an attempt forgotten": (rows(attempts), "its attempts are [], but its current one is 1."),
        "an attempt begun later": (lambda tx: set_attempt(tx, first_step=1), MODEL),
        "another attempt": (lambda tx: set_run(tx, attempt=2), "its attempts are [1], but its current one is 2."),
        "a reservation that is not there": (
            lambda tx: set_run(tx, reservation_id="res_x"),
            "it names the reservation res_x, but its active one is None.",
        ),
        "a budget put elsewhere": (
            lambda tx: set_account(tx, TEAM, parent_id=account(tx, PLANNED).id),
            "it is not as it was opened: parent",
        ),
        "a run's status": (rows(runs, status="completed"), "audit events leave it active"),
        "an audit event's actor": (audit_event(9, actor="key_other"), NOT_RECORDED),
        "an audit event left out": (audit_event(9), "audit event 9 is missing"),
        "two audit events swapped": (swap_audit_events, "audit event 8 (budget.created) is not the recorded one"),
        "an audit event put in": (append_audit_event, "(run.created) is not the recorded one"),
    },
    "refused": {"a limit that a refusal names": (lambda tx: set_account(tx, ALL, epsilon_limit=2.0), f"{ALL} (pop_")},
    "reserved": {
        "a population's held curve": (lambda tx: shift_curve(tx, ALL, -1, "held"), "the reserved curve differs"),
        "a budget's held curve": (lambda tx: shift_curve(tx, TEAM, 1, "held"), "the reserved curve differs"),
        "a reserved curve": (
            lambda tx: set_reservation(tx, reserved_curve=whole(tx, MODEL)),
            "is not that of its plan",
        ),
        "a plan made longer": (lambda tx: set_plan(tx, count=6), "is not that of its plan"),
        "more used than charged": (lambda tx: set_plan(tx, authorized_count=3), "is not what was charged under it"),
        "less used than charged": (lambda tx: set_plan(tx, authorized_count=0), "is not what was charged under it"),
        "a reservation forgotten": (rows(reservations), "that the run has not"),
        "a reservation ended": (
            lambda tx: set_reservation(tx, status="committed", steps_executed=2),
            "but its active one is None.",
        ),
        "a reservation ended with more": (
            lambda tx: set_reservation(tx, status="committed", steps_executed=3),
            "attests 3 steps; 2 were charged",
        ),
        "a reservation voided": (lambda tx: set_reservation(tx, status="voided"), "steps were charged under it"),
        "a reservation forfeited": (lambda tx: set_reservation(tx, status="forfeited"), "is not what was forfeited"),
        "a run without its reservation": (
            lambda tx: set_run(tx, reservation_id=None),
            "it names the reservation None, but",
        ),
        "a charge out of its reservation": (
            lambda tx: set_decision(tx, 1, reservation_id=None),
            "is not what was charged",
        ),
        "charges under a reservation": (rows(decisions, reservation_id="res_x"), "that the run has not"),
    },
    "lowered": {
        "revoked steps given back": (
            lambda tx: set_plan(tx, revoked_count=0),
            "active plans may take more than its limit allows",
        ),
        "fewer revoked steps": (
            lambda tx: set_plan(tx, revoked_count=1),
            "differs from the audit log of lowered limits.",
        ),
    },
    "composed": {
        "parts that are added up": (lambda tx: set_account(tx, "group", max_partitions_per_unit=None), "group ("),
        "more parts that count": (lambda tx: set_account(tx, "group", max_partitions_per_unit=2), "group ("),
        "a sum made parallel": (lambda tx: set_account(tx, "clinic", max_partitions_per_unit=1), "clinic ("),
        "an attestation forgotten": (rows(partition_attestations), "no attestation says"),
        "a second budget forgotten": (
            lambda tx: tx.execute(delete(run_budgets).where(run_budgets.c.position == 1)),
            "group/south/both",
        ),
        "an ancestor left out": (lambda tx: leave_out_ancestor(tx, "group/south/both", "clinic"), "group/south/both"),
        "another first budget": (rows(run_budgets, position=9 - run_budgets.c.position), FIRST_OF_OTHER),
        "nothing spent by the whole": (
            lambda tx: set_balance(tx, "group", spent_curve=b"", held_curve=b""),
            "those of its parts that have lost most",
        ),
        "nothing held by the whole": (lambda tx: set_balance(tx, "group", held_curve=b""), "group ("),
        "nothing spent by a part": (nothing_spent_by_a_part, "group/south ("),
    },
    "planned": {
        "more steps": (plan_weights(steps=lambda plan: plan["steps"] + 1), "its limit does not allow"),
        "another epsilon": (
            plan_weights(epsilons=lambda plan: [each * 0.99 for each in plan["epsilons"]]),
            "its limit does not allow",
        ),
        "more delta for the plan": (plan_weights(delta=9.9e-6), "its filter weights sum to more than its delta"),
        "another share": (plan_weights(share=0.95), "its filter weights are not those of its planned workload"),
        "steps taken back": (plan_usage(TEAM, emptied=False), "its spent curve is not the sum of its charges"),
        "steps of the population taken back": (plan_usage(ALL, emptied=False), "its spent curve is not the sum of"),
        "usage forgotten": (plan_usage(TEAM, emptied=True), "it does not count what it uses up of the plan of"),
        "a run's usage forgotten": (plan_usage(f"{TEAM}/own", emptied=True), "it does not count what it uses up"),
        "a plan taken away": (lambda tx: set_account(tx, TEAM, planned_events="[]"), "planned_sha256"),
    },
}
CASES = [(name, what) for name, table in TAMPERINGS.items() for what in table]


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A copy of the prepared ledger that the test's parameter `name` names."""
    with copied(request.node.callspec.params["name"], tmp_path) as opened:
        yield opened


@pytest.mark.parametrize("name", PREPARED)
def test_prepared_ledger_is_sound(database: Database, name: str) -> None:
    found = verify(database)
    assert (found.problems, found.unproven) == ((), {}), name


@pytest.mark.parametrize(("name", "what"), CASES)
def test_tampered_rows_are_named(database: Database, name: str, what: str) -> None:
    tamper, named = TAMPERINGS[name][what]
    with tampering(database) as tx:
        tamper(tx)
    found = verify(database)
    assert any(named in problem for problem in found.problems), found.problems
    assert str(found.discrepancies[0].organisation_id).startswith("org_")
