"""Organisations on several databases: each lives on one, and is kept waiting by that one only."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NoReturn
from unittest.mock import patch

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from app.ledger.errors import (
    AuthenticationError,
    InvalidInputError,
    LedgerUnavailableError,
    NameTakenError,
    NotFoundError,
)
from app.ledger.permissions import Role
from app.main import create_app
from app.persistence.database import Database
from app.service.auth import credential_cache
from app.service.auth.authentication import authenticate, create_organisation
from app.service.auth.credential_cache import Authenticator
from app.service.database_copy import copy_database
from app.service.governance.api_keys import create_key
from app.service.placements import Placements
from app.service.verification import verify
from app.settings import Settings
from tests.conftest import Ledger
from tests.persistence.dump import dump
from tests.service.placed_service import NOW, PlacedService, take_a_step


@contextmanager
def _down(database: Database) -> Iterator[list[object]]:
    """A database that does not answer; yields what it was asked."""
    asked: list[object] = []

    def refuse(asker: object, **_: object) -> NoReturn:
        asked.append(asker)
        raise OperationalError("BEGIN", {}, Exception("the server is gone"))

    event.listen(database.engine, "begin", refuse, insert=True)
    groups = "pipeline" if database.dialect == "postgresql" else "write"  # they begin on the driver's connection
    try:
        with patch.object(database, groups, refuse):
            yield asked
    finally:
        event.remove(database.engine, "begin", refuse)


def test_an_organisation_lives_wholly_on_its_database(placed: PlacedService) -> None:
    first, second = (take_a_step(ledger) for ledger in (placed.hospital, placed.clinic))
    for ledger, run, other in ((placed.hospital, first, second), (placed.clinic, second, first)):
        rows = dump(ledger.database)
        assert len(rows["organisations"]) == 1
        assert [row[1] for row in rows["runs"]] == [run]
        assert len(rows["decisions"]) == 1
        assert verify(ledger.database).problems == ()
        assert ledger.get(f"/v1/runs/{run}").status_code == 200
        assert ledger.get(f"/v1/runs/{other}").status_code == 404


def test_a_placement_that_is_down_keeps_its_own_organisations_waiting_only(placed: PlacedService) -> None:
    runs = [take_a_step(ledger) for ledger in (placed.hospital, placed.clinic)]
    both: list[tuple[Ledger, str, str]] = [(placed.hospital, runs[0], "default"), (placed.clinic, runs[1], "eu-2")]
    for (ledger, run, name), up in zip(both, both[::-1], strict=True):
        with _down(ledger.database):
            assert ledger.post(f"/v1/runs/{run}/steps", {}, "trainer").status_code == 503
            assert ledger.get(f"/v1/runs/{run}").status_code == 503
            assert up[0].post(f"/v1/runs/{up[1]}/steps", {}, "trainer").status_code == 200
            assert up[0].get(f"/v1/runs/{up[1]}").status_code == 200
            ready = placed.ready()
            assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
            assert ready.json()["unavailable"] == {name: "The database does not answer."}
        assert ledger.post(f"/v1/runs/{run}/steps", {}, "trainer").status_code == 200
    assert placed.ready().json() == {"status": "ok"}


def test_a_service_none_of_whose_placements_answers_is_not_ready(placed: PlacedService) -> None:
    with _down(placed.hospital.database), _down(placed.clinic.database):
        ready = placed.ready()
    assert ready.status_code == 503
    assert ready.json()["detail"].startswith("default: The database does not answer. eu-2: The database")


def test_a_key_is_asked_for_where_it_was_found(placed: PlacedService, monkeypatch: pytest.MonkeyPatch) -> None:
    run = take_a_step(placed.clinic)
    with _down(placed.hospital.database) as asked:
        assert placed.clinic.post(f"/v1/runs/{run}/steps", {}, "trainer").status_code == 200  # remembered
        assert asked == []
    monkeypatch.setattr(credential_cache, "CACHE_SECONDS", -1.0)
    assert placed.clinic.get(f"/v1/runs/{run}").status_code == 200  # looked up, and forgotten at once
    with _down(placed.hospital.database) as asked:
        assert placed.clinic.get(f"/v1/runs/{run}").status_code == 200  # looked up where it was found
    assert asked == []


def test_a_key_that_nobody_knows_is_refused_where_everybody_answers(placements: Placements) -> None:
    keys = Authenticator(placements.databases)
    with pytest.raises(AuthenticationError):
        keys.authenticate("Bearer key_x.secret")
    for down in placements:
        with _down(down.database), pytest.raises(OperationalError):  # it may be known there
            keys.authenticate("Bearer key_x.secret")


def test_one_caller_at_a_time_tries_a_database_that_is_down(
    placements: Placements, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = {"default": placements.named("default").database}
    create_organisation(only["default"], "hospital", NOW)
    key = f"Bearer {create_key(only['default'], 'hospital', Role.ADMIN, NOW).key}"
    keys = Authenticator(only)
    with _down(only["default"]), pytest.raises(OperationalError):
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


def test_names_are_taken_once_over_all_placements(placements: Placements) -> None:
    everywhere = placements.databases
    made = create_organisation(everywhere["eu-2"], "clinic", NOW, everywhere.values())
    for database in everywhere.values():
        for name in ("clinic", made):
            with pytest.raises(NameTakenError):
                create_organisation(database, name, NOW, everywhere.values())
    assert (placements.find_organisation("clinic").name, placements.find_organisation(made).name) == ("eu-2", "eu-2")
    with pytest.raises(NotFoundError, match="org create"):
        placements.find_organisation("hospital")
    with pytest.raises(NotFoundError, match="there are: default, eu-2"):
        placements.named("eu-3")


def test_of_many_who_want_one_name_on_several_placements_one_gets_it(placements: Placements) -> None:
    everywhere = placements.databases

    def found(number: int) -> bool:
        try:
            create_organisation(list(everywhere.values())[number % 2], "clinic", NOW, everywhere.values())
        except NameTakenError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(found, range(8))) == 1
    assert sum(len(dump(database)["organisations"]) for database in everywhere.values()) == 1


def test_an_organisation_is_not_founded_while_another_placement_could_have_its_name(placements: Placements) -> None:
    everywhere = placements.databases
    with _down(everywhere["eu-2"]), pytest.raises(OperationalError):
        create_organisation(everywhere["default"], "hospital", NOW, everywhere.values())
    assert dump(everywhere["default"])["organisations"] == []


def test_a_key_s_id_is_new_on_every_placement(placements: Placements, monkeypatch: pytest.MonkeyPatch) -> None:
    everywhere = placements.databases
    for name, organisation in (("default", "hospital"), ("eu-2", "clinic")):
        create_organisation(everywhere[name], organisation, NOW, everywhere.values())
    first = create_key(everywhere["default"], "hospital", Role.ADMIN, NOW, everywhere.values())
    ids = iter([first.id, first.id, "key_new"])
    monkeypatch.setattr("app.service.governance.api_keys.new_id", lambda *_: next(ids))
    assert create_key(everywhere["eu-2"], "clinic", Role.ADMIN, NOW, everywhere.values()).id == "key_new"


def test_a_name_that_two_databases_brought_along_is_given_by_its_id(placements: Placements) -> None:
    ids = [create_organisation(placement.database, "hospital", NOW) for placement in placements]
    with pytest.raises(InvalidInputError, match="default, eu-2; give the id"):
        placements.find_organisation("hospital")
    assert [placements.find_organisation(organisation).name for organisation in ids] == ["default", "eu-2"]
    placements.require_distinct()


def test_a_copy_of_a_ledger_is_no_second_placement(placements: Placements) -> None:
    organisation = create_organisation(placements.named("default").database, "hospital", NOW)
    copy_database(*placements.databases.values())
    with pytest.raises(InvalidInputError, match=f"{organisation} is on the placements 'default' and 'eu-2'"):
        placements.require_distinct()


def test_one_database_is_not_two_placements(placed_urls: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError, match="'default' and 'us' are one database"):
        Placements({"default": placed_urls["default"], "us": placed_urls["default"]}, 5)


def test_lapsed_reservations_are_looked_for_on_every_placement(
    placed_urls: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Database] = []

    async def look(db: Database) -> None:
        looked.append(db)

    monkeypatch.setattr("app.service.placements.run_maintenance", look)
    app = create_app(Settings(database_url=placed_urls["default"], placements={"eu-2": placed_urls["eu-2"]}))
    with TestClient(app) as http:
        assert http.get("/healthz").status_code == 200
    assert looked == list(app.state.placements.databases.values())
