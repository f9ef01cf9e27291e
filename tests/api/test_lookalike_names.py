"""No population, and no budget beside another, has a name that a person could take for the other's."""

from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError

from app.persistence.database import ALL_TENANTS
from app.persistence.tables import accounts
from app.service.verification import verify
from tests.api.conftest import SeededLedger
from tests.service.tampering import tampering

LIMIT = {"epsilon": 1.0, "delta": 1e-5}


def _population(seeded: SeededLedger, name: str) -> httpx2.Response:
    body = {"name": name, "privacy_unit": "patient", "neighboring_relation": "add_or_remove_one", "limit": LIMIT}
    return seeded.ledger.post("/v1/populations", body)


def _budget(seeded: SeededLedger, name: str, parent: str = "mimic") -> httpx2.Response:
    return seeded.ledger.post("/v1/budgets", {"name": name, "parent": parent, "limit": LIMIT})


@pytest.mark.parametrize("name", ["Mimic", "MIMIC", "m\u0456mic", "mi-mic", "rnimic"])
def test_a_second_population_of_the_same_looks_is_refused_with_the_others_name(shared: SeededLedger, name: str) -> None:
    before = shared.rows()
    reply = _population(shared, name)
    answer = reply.json()
    assert (reply.status_code, answer["code"], answer["name"]) == (409, "name_taken", "mimic")
    assert "'mimic'" in answer["detail"]
    assert shared.rows() == before


@pytest.mark.parametrize("name", ["icu team", "ICU-Team", "icu_te\u0430m", "icuteam"])
def test_budgets_beside_each_other_have_names_that_differ(shared: SeededLedger, name: str) -> None:
    assert (_budget(shared, name).json()["code"], _budget(shared, name).json()["name"]) == ("name_taken", "icu-team")


def test_a_digit_more_is_another_name_and_elsewhere_a_name_is_free(seeded: SeededLedger) -> None:
    assert _population(seeded, "mimic2").status_code == 201
    assert _budget(seeded, "ICU team", "mimic2").status_code == 201
    assert _budget(seeded, "mimic", "mimic2").status_code == 201
    assert seeded.ledger.run(name="model") != seeded.ledger.run(name="Model")
    assert verify(seeded.ledger.database).problems == ()


def test_opened_at_once_one_of_two_names_is_taken(seeded: SeededLedger) -> None:
    names = ["ward-a", "Ward A", "WARD_A", "w\u0430rda"]
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda name: _budget(seeded, name).status_code, names))
    assert sorted(replies) == [201, 409, 409, 409]


@pytest.mark.parametrize("kind", ["population", "budget"])
def test_the_database_has_no_two_of_a_kind(seeded: SeededLedger, kind: str) -> None:
    with seeded.ledger.database.read(ALL_TENANTS) as tx:
        row = dict(tx.execute(select(accounts).where(accounts.c.kind == kind)).mappings().first() or {})
    row |= {"id": "x", "path": "X", "name": "X"}
    row |= {"population_id": "x"} if kind == "population" else {}
    with pytest.raises(IntegrityError), seeded.ledger.database.write(ALL_TENANTS) as tx:
        tx.execute(insert(accounts).values(row))


def test_what_is_kept_of_a_name_is_verified(seeded: SeededLedger) -> None:
    with tampering(seeded.ledger.database) as tx:
        tx.execute(update(accounts).where(accounts.c.id == seeded.budget).values(name_skeleton="elsewhere"))
    (problem,) = verify(seeded.ledger.database).problems
    assert "its name" in problem
