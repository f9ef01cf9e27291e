"""A database that does not answer: callers get 503, and do not all wait for it."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NoReturn
from unittest.mock import patch

import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from app.ledger.errors import AuthenticationError, LedgerUnavailableError
from app.ledger.permissions import Role
from app.persistence.database import Database
from app.service.auth import credential_cache
from app.service.auth.authentication import authenticate
from app.service.auth.credential_cache import Authenticator
from tests.conftest import Ledger


@contextmanager
def _down(database: Database) -> Iterator[None]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise OperationalError("BEGIN", {}, Exception("the server is gone"))

    event.listen(database.engine, "begin", refuse, insert=True)
    groups = "pipeline" if database.dialect == "postgresql" else "write"  # they begin on the driver's connection
    try:
        with patch.object(database, groups, refuse):
            yield
    finally:
        event.remove(database.engine, "begin", refuse)


def test_requests_get_503_until_the_database_answers_again(ledger: Ledger) -> None:
    ledger.population()
    ledger.budget()
    run = ledger.run()
    assert ledger.post(f"/v1/runs/{run}/steps", {}, "trainer").status_code == 200
    with _down(ledger.database):
        assert ledger.post(f"/v1/runs/{run}/steps", {}, "trainer").status_code == 503
        assert ledger.get(f"/v1/runs/{run}").status_code == 503
        assert ledger.http.get("/readyz").json()["detail"] == "The database does not answer."
    assert ledger.post(f"/v1/runs/{run}/steps", {}, "trainer").status_code == 200
    assert ledger.http.get("/readyz").json() == {"status": "ok"}


def test_unknown_key_is_refused_only_when_the_database_answers(ledger: Ledger) -> None:
    keys = Authenticator(ledger.database)
    with pytest.raises(AuthenticationError):
        keys.authenticate("Bearer key_x.secret")
    with _down(ledger.database), pytest.raises(OperationalError):
        keys.authenticate("Bearer key_x.secret")


def test_one_caller_at_a_time_tries_a_database_that_is_down(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    key = ledger.headers("admin")["Authorization"]
    keys = Authenticator(ledger.database)
    with _down(ledger.database), pytest.raises(OperationalError):
        keys.authenticate(key)
    tries, answered = threading.Event(), threading.Event()

    def slowly(*asked: Any) -> object:  # noqa: ANN401 - as authenticate
        tries.set()
        assert answered.wait(30)
        return authenticate(*asked)

    monkeypatch.setattr(credential_cache, "authenticate", slowly)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(keys.authenticate, key)
        assert tries.wait(30)
        with pytest.raises(LedgerUnavailableError):  # at once: the first is still waiting
            keys.authenticate(key)
        answered.set()
        assert first.result().role is Role.ADMIN
    assert keys.authenticate(key).role is Role.ADMIN
