"""Roles: each operation in each role, in its own organisation and as another one, as the matrix says."""

import itertools
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2

from app.ledger.permissions import Role
from app.persistence.database import ALL_TENANTS
from app.persistence.repositories import organisations, raw_rows
from app.persistence.tables import metadata
from app.service.keys.api_keys import create_key
from tests.api.conftest import LIMIT, POPULATION, SeededLedger
from tests.api.matrix import EVERYONE, HIDDEN, LOOKED_FOR_FIRST, MAY, SAME, TABLE
from tests.api.operations import GUARDED, NOWHERE, WITH_BODY, Operation, resolved, valid_body, valid_headers
from tests.conftest import SAMPLED
from tests.ledgers import schedule_blocks

NUMBERS: Iterator[int] = itertools.count()


def _waiting_reservation(shared: SeededLedger) -> str:
    """A plan that waits until its budget opens."""
    later, until = ((datetime.now(UTC) + timedelta(days=days)).isoformat() for days in (1, 2))
    budget = shared.ledger.budget(f"later-{next(NUMBERS)}", opens_at=later)["path"]
    body = {"name": "waits", "budget": budget, "reserve": [{"event": SAMPLED}], "wait_until": until}
    return str(shared.ledger.post("/v1/runs", body).json()["waiting_reservation"])


def _account(shared: SeededLedger, *, proposed: bool) -> dict[str, str]:
    """A budget, and a proposal for it by a key of none of these roles."""
    ids = {"account_id": str(shared.ledger.budget(f"b-{next(NUMBERS)}")["id"])}
    if proposed:
        made = create_key(shared.ledger.database, "hospital", Role.PLANNER, datetime.now(UTC))
        shared.ledger.keys["hospital", "proposer"] = made.key
        ids["proposal_id"] = shared.ledger.set_limit(ids["account_id"], 2.0, "proposer").json()["id"]
    return ids


def _receiver(shared: SeededLedger) -> dict[str, str]:
    """A receiver and a delivery; the one before is disabled, as there can be twenty."""
    for before in shared.ledger.get("/v1/receivers", "admin").json()["items"]:
        shared.ledger.post(f"/v1/receivers/{before['id']}/disable", None)
    receiver = shared.ledger.post("/v1/receivers", {"url": "https://alerts.example/roles"}).json()["id"]
    delivery = shared.ledger.post(f"/v1/receivers/{receiver}/test", None).json()["id"]
    return {"receiver_id": receiver, "delivery_id": delivery}


def test_role_is_allowed_what_the_matrix_says(shared: SeededLedger) -> None:
    """A role that may does each operation; what only reads is asked by a second one, in turn."""
    for place, operation in enumerate(GUARDED):
        ids = shared.ids()
        if operation.method != "GET":
            ids |= _fresh(shared, operation)
        roles = MAY[operation.id]
        reads = operation.method == "GET" or roles == EVERYONE
        for role in {roles[place % len(roles)]} if reads else roles[:1]:
            reply = _ask(shared, operation, role, ids)
            assert reply.status_code in {200, 201, 204}, (operation.id, role, reply.text)


def _fresh(shared: SeededLedger, operation: Operation) -> dict[str, str]:
    """The ids of what an operation may end, and which the next one needs."""
    ids: dict[str, str] = {}
    if operation.id in {"completeRun", "abortRun", "pauseRun", "createAttempt", "createReservation"}:
        ids["run_id"] = shared.ledger.run()
    if "account_id" in operation.path or "proposal_id" in operation.path:
        ids |= _account(shared, proposed="proposal_id" in operation.path)
    if operation.id in {"createBlocks", "replaceBlockSchedule", "removeBlockSchedule"}:
        parts = {"composition": "parallel", "attestation": "A record has one date."}
        ids["account_id"] = str(shared.ledger.budget(f"b-{next(NUMBERS)}", **parts)["id"])
    if operation.id == "removeBlockSchedule":
        schedule_blocks(shared.ledger, ids["account_id"])
    if operation.id == "liftQuarantine":
        with shared.ledger.database.write(ALL_TENANTS) as tx:
            owner = organisations.find_organisation(tx, "hospital")
            assert owner is not None
            raw_rows.set_quarantine(tx, owner, {ids["account_id"]: "its rows were changed"}, datetime.now(UTC))
    if operation.id == "chargeExperiment":
        # A sweep that is approved and not charged yet, on people of its own.
        name = f"people-{next(NUMBERS)}"
        population = shared.ledger.population(name)["id"]
        shared.ledger.budget("team", name)
        assert shared.ledger.set_policy({"approval_above_epsilon": 1e-6}, population).status_code == 200
        trials = {"events": [{"event": SAMPLED}], "mean": 2.0}
        body = {"name": "sweep", "budget": f"{name}/team", "charging_mode": "repeat_and_select", "trials": trials}
        made = shared.ledger.post("/v1/experiments", body).json()
        [waiting] = shared.ledger.get(f"/v1/proposals?account={made['run']}").json()["items"]
        assert shared.ledger.post(f"/v1/proposals/{waiting['id']}/approve", {}, "privacy_officer").status_code == 200
        ids["experiment_id"] = str(made["id"])
    if "key_id" in operation.path:
        ids["key_id"] = str(shared.ledger.post("/v1/api-keys", {"role": "viewer"}).json()["id"])
    if "reservation_id" in operation.path:
        waits = operation.id in {"cancelReservation", "prioritizeReservation"}
        path = f"/v1/runs/{shared.ledger.run()}/reservations"
        plan = {"events": [{"event": SAMPLED, "count": 1}]}
        ids["reservation_id"] = _waiting_reservation(shared) if waits else shared.ledger.post(path, plan).json()["id"]
    if "receiver_id" in operation.path or "delivery_id" in operation.path:
        ids |= _receiver(shared)
    return ids


def test_other_role_is_refused_and_changes_nothing(shared: SeededLedger) -> None:
    # A proposer may withdraw what it has proposed: the proposal here is of none of these roles' keys.
    ids = shared.ids() | _account(shared, proposed=True)
    before = shared.rows()
    for operation in GUARDED:
        for role in EVERYONE:
            if role not in MAY[operation.id]:
                reply = _ask(shared, operation, role, ids if "proposal_id" in operation.path else shared.ids())
                assert (reply.status_code, reply.json()["code"]) == (403, "permission_denied"), (operation.id, role)
                assert reply.json()["required_roles"] == MAY[operation.id]
    assert shared.rows() == before


def _ask(shared: SeededLedger, operation: Operation, role: str, ids: dict[str, str]) -> httpx2.Response:
    body = valid_body(operation, f"{operation.id}-{next(NUMBERS)}")
    headers = shared.ledger.headers(role) | valid_headers(operation)
    path = operation.at(**ids)
    return shared.ledger.http.request(operation.method, path, json=body, headers=headers)


def test_missing_role_is_refused_before_an_id_is_looked_up(shared: SeededLedger) -> None:
    answers = [shared.ledger.post(f"/v1/runs/{run}/pause", None, "viewer") for run in (shared.run, "run_nothing")]
    assert [reply.status_code for reply in answers] == [403, 403]
    assert answers[0].json() | {"request_id": None} == answers[1].json() | {"request_id": None}


NAMES = ("icu-team", "mimic")
"""Of the hospital's budget and its population; the clinic has neither."""


def _hospitals(shared: SeededLedger) -> dict[str, list[tuple[object, ...]]]:
    """Every row of the hospital."""
    with shared.ledger.database.read(ALL_TENANTS) as tx:
        owner = organisations.find_organisation(tx, "hospital")
    found = {}
    for name, rows in shared.rows().items():
        columns = metadata.tables[name].c.keys()
        place = columns.index("id" if name == "organisations" else "organisation_id")
        found[name] = [row for row in rows if row[place] == owner]
    return found


def _ask_as_another(shared: SeededLedger, operation: Operation, role: str, *, there: bool = True) -> httpx2.Response:
    """Ask as the clinic for what the hospital has, or in the same words for what nobody has."""
    body = json.dumps(valid_body(operation, f"n-{role}"))
    for name in NAMES if not there else ():
        body = body.replace(name, f"no-{name}")
    headers = shared.ledger.headers(role, "clinic") | valid_headers(operation) | {"Content-Type": "application/json"}
    content = None if body == "null" else body.encode()
    path = operation.at(**(shared.ids() if there else NOWHERE))
    return shared.ledger.http.request(operation.method, path, content=content, headers=headers)


def _as_of_nothing(shared: SeededLedger, answer: httpx2.Response, asked: httpx2.Response) -> None:
    """Compare what is told of the hospital's object with what is told of none, but for its name: the asker sent it."""
    known: dict[str, Any] = asked.json()
    for name, value in shared.ids().items():
        known["detail"] = known["detail"].replace(NOWHERE[name], value)
    for name in NAMES:
        known["detail"] = known["detail"].replace(f"no-{name}", name)
    assert answer.json() | {"request_id": None} == known | {"request_id": None}
    assert answer.status_code == asked.status_code
    fleeting = {"x-request-id", "date", "content-length"}
    kept = [{name: value for name, value in each.headers.items() if name not in fleeting} for each in (answer, asked)]
    assert kept[0] == kept[1]


def test_role_of_another_organisation_gets_what_the_matrix_says(shared: SeededLedger) -> None:
    # Every id of the hospital, and every word that it has chosen: what no other tenant is ever told.
    words = {value for table in _hospitals(shared).values() for row in table for value in row if isinstance(value, str)}
    ids = {word for word in words if word[3:4] == "_" and len(word) > 18}
    assert {*shared.ids().values()} <= ids
    never_told, before = frozenset({*ids, *NAMES}), _hospitals(shared)
    for place, operation in enumerate(GUARDED):
        roles, elsewhere = TABLE[operation.id]
        # A role that may and one that may not, in turn: which may is held within an organisation.
        may = MAY[operation.id]
        others = [role for role in EVERYONE if role not in may] or may
        for role in {may[place % len(may)], others[place % len(others)]}:
            reply, case = _ask_as_another(shared, operation, role), (operation.id, role)
            if role not in roles and operation.id not in LOOKED_FOR_FIRST:
                assert (reply.status_code, reply.json()["code"]) == (403, "permission_denied"), case
                assert reply.json()["required_roles"] == roles
            elif elsewhere == HIDDEN:
                assert (reply.status_code, reply.json()["code"]) == (404, "not_found"), case
                _as_of_nothing(shared, reply, _ask_as_another(shared, operation, role, there=False))
            else:
                assert reply.status_code in {200, 201}, (case, reply.text)
                assert [word for word in never_told if word in reply.text] == [], case
            if elsewhere == SAME and role in roles:
                body, headers = valid_body(operation), shared.ledger.headers(role)
                hospitals = shared.ledger.http.request(operation.method, operation.path, json=body, headers=headers)
                assert reply.json() == hospitals.json()
    assert _hospitals(shared) == before


def _clinic(shared: SeededLedger, method: str, path: str, body: object = None, **headers: str) -> httpx2.Response:
    sent = shared.ledger.headers("admin", "clinic") | headers
    return shared.ledger.http.request(method, path, json=body, headers=sent)


REFERENCES: dict[str, tuple[str, dict[str, Any]]] = {
    "/v1/budgets": ("parent", {"name": "b", "limit": LIMIT}),
    "/v1/api-keys": ("scope", {"role": "viewer"}),
    "/v1/runs": ("budget", {"name": "r"}),
    "/v1/receivers": ("account", {"url": "https://alerts.example"}),
}
FILTERS = ("budgets?parent=", "runs?budget=", "decisions?account=", "proposals?account=", "alerts?account=")


def test_reference_to_an_object_of_another_organisation_is_404(shared: SeededLedger) -> None:
    before = shared.rows()
    for named in (shared.population, shared.budget, "mimic", "mimic/icu-team"):
        replies = [_clinic(shared, "POST", path, body | {of: named}) for path, (of, body) in REFERENCES.items()]
        replies += [_clinic(shared, "GET", f"/v1/{path}{named}") for path in FILTERS]
        assert {(reply.status_code, reply.json()["code"]) for reply in replies} == {(404, "not_found")}
    assert shared.rows() == before


NAMING = {"parent", "budget", "budgets", "account", "scope", "reservation"}
"""Fields of bodies that name objects; what a path names is the matrix's."""


def _naming(schema: dict[str, Any], within: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The places of a body's schema that name an object, also within other objects."""
    schema = resolved(schema)
    for option in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        yield from _naming(option, within)
    for name, each in schema.get("properties", {}).items() if len(within) < 3 else ():
        if name in NAMING:
            yield (*within, name)
        else:
            yield from _naming(each, (*within, name))


def _clinics_run(shared: SeededLedger) -> str:
    """A run of the clinic, for bodies that are looked at once their path is found."""
    name = f"own-{next(NUMBERS)}"
    assert _clinic(shared, "POST", "/v1/populations", POPULATION | {"name": name}).status_code == 201
    budget = {"name": "team", "parent": name, "limit": LIMIT}
    assert _clinic(shared, "POST", "/v1/budgets", budget).status_code == 201
    made = _clinic(shared, "POST", "/v1/runs", {"name": "r", "budget": f"{name}/team", "event": SAMPLED})
    return str(made.json()["id"])


def _told_alike(
    shared: SeededLedger, operation: Operation, sent: Callable[[str], dict[str, Any]], run: str = "elsewhere"
) -> int:
    """Ask as the clinic with each id of the hospital, and with one that nobody has; count the questions."""
    path = operation.at(**dict.fromkeys(NOWHERE, "elsewhere") | {"run_id": run})
    headers = shared.ledger.headers("admin", "clinic") | valid_headers(operation)
    # Ids and paths of the hospital, each with one of the same form that nobody has.
    for value, unknown in [
        *((value, NOWHERE[kind]) for kind, value in shared.ids().items()),
        *((name, f"no-{name}") for name in NAMES),
    ]:
        told: list[tuple[int, str]] = []
        for each in (value, unknown):
            reply = shared.ledger.http.request(operation.method, path, headers=headers, **sent(each))
            shown = re.sub(r"req_[0-9a-f]+", "", reply.text.replace(f"'{each}'", "X"))
            told.append((reply.status_code, shown))
        assert told[0] == told[1], (operation.id, value)
    return len(NAMES) + len(shared.ids())


def test_body_names_objects_of_another_organisation_in_vain(shared: SeededLedger) -> None:
    """Each field of each operation's body that names an object, as the document says: told as of none."""
    before, found, run = _hospitals(shared), set(), _clinics_run(shared)
    for operation in WITH_BODY:
        content = operation.described["requestBody"]["content"]["application/json"]
        for place in set(_naming(content["schema"])):
            found.add((operation.id, *place))

            def sent(value: str, place: tuple[str, ...] = place, operation: Operation = operation) -> dict[str, Any]:
                body: dict[str, Any] = json.loads(json.dumps(valid_body(operation, "n") or {}))
                if place[-1] == "budgets":  # instead of one
                    body.pop("budget", None)
                at = body
                for name in place[:-1]:
                    at = at.setdefault(name, {})
                at[place[-1]] = [value] if place[-1] == "budgets" else value
                return {"json": body}

            _told_alike(shared, operation, sent, run)
    assert found >= {
        ("createBudget", "parent"),
        ("createRun", "budget"),
        ("createReservation", "preceding", "reservation"),
    }
    assert _hospitals(shared) == before


def _query(name: str) -> Callable[[str], dict[str, Any]]:
    return lambda value: {"params": {name: value}}


def test_query_names_objects_of_another_organisation_in_vain(shared: SeededLedger) -> None:
    """Each text in each operation's query, as the document lists them: told as of nobody's."""
    before, asked = _hospitals(shared), 0
    for operation in GUARDED:
        if operation.method != "GET" or "{" in operation.path:
            continue
        for parameter in operation.described.get("parameters", ()):
            texts = [each.get("type") for each in parameter["schema"].get("anyOf", (parameter["schema"],))]
            if parameter["in"] == "query" and "string" in texts:
                asked += _told_alike(shared, operation, _query(parameter["name"]))
    assert asked > 500
    assert _hospitals(shared) == before


def test_two_organisations_use_the_same_names_and_keys(seeded: SeededLedger) -> None:
    run = {"name": "model", "budget": "mimic/icu-team", "event": SAMPLED}
    hospital = seeded.ledger.post("/v1/runs", run, Idempotency_Key="the-same")
    before = seeded.ledger.get(f"/v1/runs/{seeded.run}").content
    assert _clinic(seeded, "POST", "/v1/populations", POPULATION | {"name": "mimic"}).status_code == 201
    budget = {"name": "icu-team", "parent": "mimic", "limit": LIMIT}
    assert _clinic(seeded, "POST", "/v1/budgets", budget).status_code == 201
    clinic = _clinic(seeded, "POST", "/v1/runs", run, **{"Idempotency-Key": "the-same"})
    assert (hospital.status_code, clinic.status_code) == (201, 201)
    assert "idempotent-replayed" not in clinic.headers
    assert hospital.json()["id"] != clinic.json()["id"]
    assert _clinic(seeded, "POST", f"/v1/runs/{clinic.json()['id']}/steps", {}).json()["first_step"] == 0
    assert seeded.ledger.get(f"/v1/runs/{seeded.run}").content == before
