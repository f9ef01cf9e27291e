"""Every operation, asked in every role by another tenant: as the matrix says, and nobody is told or touched."""

import json
from typing import Any

import httpx2
import pytest

from app.persistence.database import ALL_TENANTS as ALL
from app.persistence.repositories import organisations
from app.persistence.tables import metadata
from tests.api.conftest import SeededLedger
from tests.api.matrix import EVERYONE, HIDDEN, LOOKED_FOR_FIRST, MAY, SAME, TABLE
from tests.api.operations import GUARDED, NOWHERE, Operation, valid_body, valid_headers

NAMES = ("icu-team", "mimic")
"""Of the hospital's budget and its population; the clinic has neither."""


@pytest.fixture(scope="module")
def answer(shared: SeededLedger) -> frozenset[str]:
    """Every id of the hospital, and every word that it has chosen: what no other tenant is ever told."""
    words = {value for table in _hospitals(shared).values() for row in table for value in row if isinstance(value, str)}
    ids = {word for word in words if word[3:4] == "_" and len(word) > 18}
    assert {*shared.ids().values()} <= ids
    return frozenset({*ids, *NAMES})


def _hospitals(shared: SeededLedger) -> dict[str, list[tuple[object, ...]]]:
    """Every row of the hospital."""
    with shared.ledger.database.read(ALL) as tx:
        owner = organisations.find_organisation(tx, "hospital")
    found = {}
    for name, rows in shared.rows().items():
        columns = metadata.tables[name].c.keys()
        place = columns.index("id" if name == "organisations" else "organisation_id")
        found[name] = [row for row in rows if row[place] == owner]
    return found


def _ask(shared: SeededLedger, operation: Operation, role: str, *, there: bool = True) -> httpx2.Response:
    """Ask as the clinic for what the hospital has, or in the same words for what nobody has."""
    body = json.dumps(valid_body(operation, f"n-{role}"))
    for name in NAMES if not there else ():
        body = body.replace(name, f"no-{name}")
    headers = shared.ledger.headers(role, "clinic") | valid_headers(operation) | {"Content-Type": "application/json"}
    content = None if body == "null" else body.encode()
    reply: httpx2.Response = shared.ledger.http.request(
        operation.method, operation.at(**(shared.ids() if there else NOWHERE)), content=content, headers=headers
    )
    return reply


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


def test_the_matrix_has_every_operation_and_no_other() -> None:
    assert set(TABLE) == {operation.id for operation in GUARDED}
    assert {operation.id for operation in GUARDED if "{" in operation.path} <= {
        name for name, (_, elsewhere) in TABLE.items() if elsewhere == HIDDEN
    }


@pytest.mark.parametrize("operation", GUARDED, ids=lambda operation: operation.id)
def test_another_tenant_gets_what_the_matrix_says(
    shared: SeededLedger, operation: Operation, answer: frozenset[str]
) -> None:
    roles, elsewhere = TABLE[operation.id]
    before = _hospitals(shared)
    for role in EVERYONE:
        reply = _ask(shared, operation, role)
        if role not in roles and operation.id not in LOOKED_FOR_FIRST:
            assert (reply.status_code, reply.json()["code"]) == (403, "insufficient_scope"), role
            assert reply.json()["required_roles"] == MAY[operation.id]
            _as_of_nothing(shared, reply, _ask(shared, operation, role, there=False))
        elif elsewhere == HIDDEN:
            assert (reply.status_code, reply.json()["code"]) == (404, "not_found"), role
            _as_of_nothing(shared, reply, _ask(shared, operation, role, there=False))
        else:
            assert reply.status_code in {200, 201}, (role, reply.text)
            assert [word for word in answer if word in reply.text] == []
        if elsewhere == SAME and role in roles:
            hospitals = shared.ledger.http.request(
                operation.method, operation.path, json=valid_body(operation), headers=shared.ledger.headers(role)
            )
            assert reply.json() == hospitals.json()
    assert _hospitals(shared) == before
