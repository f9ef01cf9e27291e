"""Every error is a problem by a code of the table; a database in doubt admits nothing."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event, select
from sqlalchemy.exc import OperationalError

from app.accounting.errors import AccountingError
from app.api.problems import STATUSES
from app.configuration.settings import Settings
from app.ledger.errors import LedgerError
from app.persistence import database, postgresql
from app.persistence.database import ALL_TENANTS
from app.persistence.repositories import api_keys
from app.persistence.schema import upgrade
from app.persistence.tables import accounts
from tests.api.conftest import SeededLedger
from tests.api.operations import GUARDED, valid_body
from tests.asgi import AppClient
from tests.ledgers import quiet_app


def _kinds(base: type[Exception]) -> Iterator[type[Exception]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _kinds(kind)


def test_every_error_has_a_row_in_the_table_of_statuses_and_each_code_a_section_of_the_reference() -> None:
    kinds = [kind for base in (LedgerError, AccountingError) for kind in _kinds(base)]
    assert {getattr(kind, "code", "") for kind in kinds} <= set(STATUSES)
    codes = [kind.code for kind in _kinds(LedgerError) if issubclass(kind, LedgerError) and "code" in vars(kind)]
    assert len(codes) == len(set(codes))
    page = (Path(__file__).parents[2] / "docs" / "reference" / "errors.md").read_text()
    status = 0
    listed: dict[str, int] = {}
    for line in page.splitlines():
        if heading := re.fullmatch(r"(##|###) (\w+).*", line):
            status, code = (int(heading[2]), "") if heading[1] == "##" else (status, heading[2])
            listed |= {code: status} if code else {}
    assert listed == {code: status for code, (status, _) in STATUSES.items()}


def test_problem_names_its_type_and_its_request(seeded: SeededLedger) -> None:
    reply = seeded.ledger.http.get("/v1/runs/nowhere", headers=seeded.ledger.headers() | {"X-Request-Id": "mine-1"})
    assert reply.json()["type"] == "urn:problem-type:epsilon-ledger:not_found"
    assert reply.json()["request_id"] == reply.headers["x-request-id"] == "mine-1"
    refused = seeded.ledger.post(f"/v1/runs/{seeded.run}/steps", {"count": 10**6})
    assert refused.json()["request_id"] == refused.headers["x-request-id"]


@contextmanager
def _failing(seeded: SeededLedger, fails: Callable[[str], bool]) -> Iterator[None]:
    """A database that fails at the statements that are named."""

    def fail(_: Connection, __: object, statement: str, *___: object) -> None:
        if fails(statement):
            raise OperationalError(statement, {}, Exception("disk I/O error"))

    target = seeded.ledger.database.engine
    event.listen(target, "before_cursor_execute", fail)
    try:
        yield
    finally:
        event.remove(target, "before_cursor_execute", fail)


def _is_unavailable(reply: Any, what: str = "") -> None:  # noqa: ANN401 - a reply of the test client
    assert (reply.status_code, reply.json()["code"]) == (503, "ledger_unavailable"), (what, reply.text)
    assert reply.headers["content-type"] == "application/problem+json"
    assert int(reply.headers["retry-after"]) >= 1
    assert "disk" not in reply.text
    assert "SELECT" not in reply.text


# Planning asks no database, nor does the public key: for a caller who is remembered they go on.
WITH_DATABASE = [each for each in GUARDED if "accounting" not in each.path and each.id != "getSigningKey"]


def test_database_that_does_not_answer_is_503_and_changes_nothing(shared: SeededLedger) -> None:
    before = shared.rows()
    with _failing(shared, lambda _: True):
        for operation in WITH_DATABASE:
            path, body = operation.at(**shared.ids()), valid_body(operation)
            reply = shared.ledger.http.request(operation.method, path, json=body, headers=shared.ledger.headers())
            _is_unavailable(reply, operation.id)
    assert shared.rows() == before


LOUD = {"type": "gaussian", "noise_multiplier": 3}
WRITES: dict[str, tuple[str, dict[str, Any]]] = {
    "admitted steps": ("/v1/runs/{run_id}/steps", {"count": 2, "event": {"type": "gaussian", "noise_multiplier": 70}}),
    "a run": ("/v1/runs", {"name": "n", "budget": "mimic/icu-team", "event": LOUD}),
}


@pytest.mark.parametrize("what", WRITES)
def test_database_that_fails_at_any_statement_keeps_nothing(seeded: SeededLedger, what: str) -> None:
    path, body = WRITES[what]
    before = seeded.rows()
    for failing in range(1, 60):
        statements = iter(range(1, 1000))
        with _failing(seeded, lambda _, s=statements, f=failing: next(s) == f):  # type: ignore[misc]
            reply = seeded.ledger.post(path.format(**seeded.ids()), body, Idempotency_Key="k-1")
        if reply.status_code != 503:
            break
        _is_unavailable(reply)
        assert seeded.rows() == before, f"statement {failing}"
    assert failing > 5
    assert reply.status_code in {200, 201, 403}
    assert "idempotent-replayed" not in reply.headers
    assert seeded.rows() != before


def test_writer_that_does_not_finish_makes_others_repeat(seeded: SeededLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "LOCK_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(postgresql, "LOCK_TIMEOUT_SECONDS", 0.05)
    seeded.ledger.database.dispose()  # sessions with the short time-out are opened
    before = seeded.rows()
    with seeded.ledger.database.write(ALL_TENANTS) as tx:
        tx.execute(select(accounts).with_for_update())
        _is_unavailable(seeded.ledger.post(f"/v1/runs/{seeded.run}/steps", {}, "trainer"))
        _is_unavailable(seeded.ledger.post(f"/v1/runs/{seeded.run}/pause", {}, "trainer"))
        assert seeded.ledger.get(f"/v1/runs/{seeded.run}").status_code == 200
    assert seeded.rows() == before
    assert seeded.ledger.post(f"/v1/runs/{seeded.run}/steps", {}, "trainer").status_code == 200


def test_database_without_its_tables_or_its_folder_is_alive_but_not_ready(tmp_path: Path) -> None:
    stranger = {"Authorization": "Bearer key_x.secret"}
    for name in ("missing/ledger.db", "empty.db"):
        app = quiet_app(Settings(database_url=f"sqlite:///{tmp_path / name}"))
        with AppClient(app) as http:
            assert http.get("/healthz").status_code == 200
            _is_unavailable(http.get("/readyz"))
            _is_unavailable(http.get("/v1/runs", headers=stranger))
            if name == "empty.db":
                assert http.get("/v1/runs").status_code == 401
                upgrade(app.state.store.database)
                assert http.get("/readyz").status_code == 200


def test_mistake_of_the_service_is_a_problem_without_its_details(
    seeded: SeededLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a secret of the implementation")

    monkeypatch.setattr(api_keys, "find", broken)
    reply = seeded.ledger.http.get("/healthz")
    assert reply.status_code == 200
    reply = seeded.ledger.http.get("/v1/runs/a/b", headers=seeded.ledger.headers())
    assert reply.status_code == 404
    monkeypatch.setattr(seeded.ledger.http, "event_hooks", {"request": [], "response": []})
    reply = seeded.ledger.get("/v1/runs")
    assert (reply.status_code, reply.json()["code"]) == (500, "internal_error")
    assert reply.headers["content-type"] == "application/problem+json"
    assert "secret" not in reply.text
