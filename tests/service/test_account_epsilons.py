"""The epsilon that is read of accounts: of all that was charged to them, whatever lies between them and the runs."""

import json
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from app.accounting.events import NeighboringRelation, event_from_dict, fingerprint
from app.ledger.accounts import account_records
from app.ledger.accounts.account_records import Counts
from app.persistence.database import ALL_TENANTS
from app.persistence.lru_cache import LruCache
from app.persistence.repositories.accounts import list_all
from app.service.accounts import epsilons
from app.service.verification.verify import verify
from tests.api.trainer import LOUD, QUIET, Trainer, counted, gaussian
from tests.conftest import SAMPLED, Ledger
from tests.epsilons import Charge, by_curves, reference, tightest
from tests.programs import run as run_program
from tests.service.tampering import set_balance, tampering

pytestmark = pytest.mark.both_databases

WIDE = {"epsilon": 20.0, "delta": 1e-5}
ATTESTED = {"composition": "parallel", "attestation": "Each patient is in one hospital only."}
REPLACE = NeighboringRelation.REPLACE_ONE
STEEP = {"type": "laplace", "noise_multiplier": 15.0}


def opened(ledger: Ledger, *names: str, **terms: Any) -> None:  # noqa: ANN401 - JSON is anything
    """A population whose terms are these, with a wide budget of each name."""
    ledger.population(limit=WIDE, **terms)
    for name in names:
        ledger.budget(name, limit=WIDE)


def charge(ledger: Ledger, budget: str, *charges: Charge) -> str:
    """Charge a new run of a budget."""
    run = ledger.run(budget)
    ledger.post(f"/v1/runs/{run}/steps", {"events": counted(*charges)}, "trainer").raise_for_status()
    return run


def read(ledger: Ledger) -> dict[str, float]:
    """The epsilons of all accounts by path; of several runs with one path, that of one."""
    answers = [ledger.get(f"/v1/{kind}").json()["items"] for kind in ("populations", "budgets", "runs")]
    found = {each["path"]: each["epsilon"] for items in answers for each in items}
    for kind, items in zip(("populations", "budgets", "runs"), answers, strict=True):
        for each in items:
            assert ledger.get(f"/v1/{kind}/{each['id']}").json()["epsilon"] == each["epsilon"]
    return found


def stored(ledger: Ledger) -> dict[str, Counts | None]:
    """The counts of all accounts by path, as they are read of the ledger's rows."""
    with ledger.database.read(ALL_TENANTS) as tx:
        return {kept.account.path: kept.counts for _, kept, _ in list_all(tx)}


def test_same_charges_read_the_same_in_every_account_under_any_limit(ledger: Ledger) -> None:
    charges = ((SAMPLED, 30), (LOUD, 2), (STEEP, 1))
    exact = tightest(*charges)
    assert exact <= reference(*charges) * 1.001
    for name, epsilon in (("tight", 1.5), ("usual", 8.0), ("loose", 1000.0)):
        planned = [] if name == "tight" else counted(*charges)
        ledger.population(name, limit={"epsilon": epsilon, "delta": 1e-5}, planned=planned)
        ledger.budget("team", name, limit={"epsilon": epsilon, "delta": 1e-5})
        charge(ledger, f"{name}/team", *charges[::-1] if name == "usual" else charges)
    assert set(read(ledger).values()) == {exact}


def test_whole_of_disjoint_parts_has_lost_what_the_worst_part_has(ledger: Ledger) -> None:
    opened(ledger, "north", "south", "west", **ATTESTED)
    parts: dict[str, Sequence[Charge]] = {
        "north": [(LOUD, 40), (SAMPLED, 5)],
        "south": [(LOUD, 39), (SAMPLED, 90)],
        "west": [(LOUD, 2)],
    }
    for name, charges in parts.items():
        charge(ledger, f"mimic/{name}", *charges)
    found, exact = read(ledger), {name: tightest(*charges) for name, charges in parts.items()}
    assert {name: found[f"mimic/{name}"] for name in parts} == exact
    assert found["mimic"] == max(exact.values()) < tightest(*parts["north"], *parts["south"])
    assert stored(ledger)["mimic"] is None, "they follow from the parts"


def test_parts_below_a_whole_are_added_to_what_lies_beside_them(ledger: Ledger) -> None:
    opened(ledger, "aside")
    ledger.budget("parts", limit=WIDE, **ATTESTED)
    ledger.budget("empty", limit=WIDE, **ATTESTED)
    for name in ("north", "south"):
        ledger.budget(name, "mimic/parts", limit=WIDE)
    charge(ledger, "mimic/aside", (LOUD, 7))
    charge(ledger, "mimic/parts/north", (LOUD, 20))
    charge(ledger, "mimic/parts/south", (STEEP, 3))
    found = read(ledger)
    assert found["mimic/parts"] == max(tightest((LOUD, 20)), tightest((STEEP, 3)))
    assert found["mimic"] == max(tightest((LOUD, 27)), tightest((LOUD, 7), (STEEP, 3)))


def test_unit_in_several_parts_has_lost_what_those_have_together(ledger: Ledger) -> None:
    opened(ledger, "north", "south", "west", **ATTESTED, max_partitions_per_unit=2)
    for name, number in (("north", 5), ("south", 7), ("west", 9)):
        charge(ledger, f"mimic/{name}", (LOUD, number))
    assert read(ledger)["mimic"] == tightest((LOUD, 16))
    charge(ledger, "mimic/north", (STEEP, 2))
    pairs = [[(LOUD, 16)], [(LOUD, 14), (STEEP, 2)], [(LOUD, 12), (STEEP, 2)]]
    assert max(tightest(*pair) for pair in pairs) <= read(ledger)["mimic"] <= tightest((LOUD, 16), (STEEP, 2))


def test_unit_that_is_replaced_may_leave_a_part_for_another(ledger: Ledger) -> None:
    terms = ATTESTED | {"neighboring_relation": "replace_one", "replacement_assumption": "removal_is_bounded"}
    opened(ledger, "north", "south", "west", **terms)
    for name, number in (("north", 5), ("south", 7), ("west", 9)):
        charge(ledger, f"mimic/{name}", (LOUD, number))
    found = read(ledger)
    assert found["mimic/west"] == tightest((LOUD, 9), relation=REPLACE) > tightest((LOUD, 9))
    assert found["mimic"] == tightest((LOUD, 16), relation=REPLACE)


def test_run_on_several_budgets_is_charged_to_each(ledger: Ledger) -> None:
    for name in ("mimic", "eicu"):
        ledger.population(name, limit=WIDE)
        ledger.budget("team", name, limit=WIDE)
    charge(ledger, "eicu/team", (STEEP, 2))
    body = {"name": "both", "budgets": ["mimic/team", "eicu/team"], "event": LOUD}
    both = str(ledger.post("/v1/runs", body).raise_for_status().json()["id"])
    ledger.post(f"/v1/runs/{both}/steps", {"count": 8}, "trainer").raise_for_status()
    found = read(ledger)
    assert {found[path] for path in ("mimic", "mimic/team", "mimic/team/both")} == {tightest((LOUD, 8))}
    assert {found[path] for path in ("eicu", "eicu/team")} == {tightest((LOUD, 8), (STEEP, 2))}


def test_account_of_more_kinds_than_are_counted_reads_its_curve(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account_records, "MOST_KINDS", 100)
    opened(ledger, "team")
    charges = [(gaussian(3000.0 + place), 1) for place in range(101)]
    run = ledger.run("mimic/team")
    for first in range(0, len(charges), 60):
        body = {"events": counted(*charges[first : first + 60])}
        answer = ledger.post(f"/v1/runs/{run}/steps", body, "trainer").raise_for_status().json()
    assert set(stored(ledger).values()) == {None}
    exact = by_curves(*charges)
    assert set(read(ledger).values()) == {exact}
    assert answer["epsilon"] == exact
    assert verify(ledger.database).problems == ()


@pytest.mark.parametrize("end", ["commit", "void", "forfeit"])
def test_end_of_a_reservation_counts_what_was_executed(ledger: Ledger, end: str) -> None:
    opened(ledger, "team")
    trainer = Trainer(ledger, ledger.run("mimic/team", event=LOUD))
    assert trainer.steps(count=3).is_success
    held = trainer.reserved((LOUD, 10), (QUIET, 5), lease_seconds=3600)
    if end != "void":
        assert trainer.steps(count=4).json()["reservation"] == held
    assert read(ledger)["mimic"] == tightest((LOUD, 3)), "what is reserved is not spent"
    acts = {"commit": ("commit", 4), "void": ("void", None)}
    reply = trainer.end(held, *acts[end]) if end in acts else trainer.act("abort", {})
    assert reply.is_success, reply.text
    charges: list[Charge] = {"commit": [(LOUD, 7)], "void": [(LOUD, 3)]}.get(end, [(LOUD, 13), (QUIET, 5)])
    assert set(read(ledger).values()) == {tightest(*charges)}
    expected = {fingerprint_of(event): count for event, count in charges}
    assert all(counts == expected for counts in stored(ledger).values())
    assert verify(ledger.database).problems == ()


def fingerprint_of(event: dict[str, Any]) -> str:
    return fingerprint(event_from_dict(event))


READ = """
import json, sys
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.lru_cache import LruCache
from app.persistence.repositories.accounts import list_all
from app.service.accounts.epsilons import read_epsilon
database = Database(sys.argv[1])
with database.read(ALL_TENANTS) as tx:
    found = {kept.account.path: read_epsilon(tx, owner, kept, 1e-5) for owner, kept, _ in list_all(tx)}
print(json.dumps(found))
"""


def test_fresh_process_reads_the_same(ledger: Ledger) -> None:
    opened(ledger, "north", "south", **ATTESTED)
    charge(ledger, "mimic/north", (SAMPLED, 30), (LOUD, 2))
    charge(ledger, "mimic/south", (STEEP, 3), (gaussian(40.0), 9))
    url = ledger.database.engine.url.render_as_string(hide_password=False)
    done = run_program([sys.executable, "-c", READ, url])
    assert json.loads(done.stdout) == read(ledger)


def test_epsilons_are_computed_once_and_again_where_something_was_charged(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(ledger, "north", "south")
    charge(ledger, "mimic/north", (STEEP, 3), (LOUD, 31))
    charge(ledger, "mimic/south", (STEEP, 4), (LOUD, 32))
    asked: list[int] = []
    compute = epsilons._computed

    def watched(organisation_id: str, missing: Sequence[Any]) -> list[float]:
        asked.append(len(missing))
        return compute(organisation_id, missing)

    monkeypatch.setattr(epsilons, "_computed", watched)
    monkeypatch.setattr(epsilons, "_KNOWN", LruCache(epsilons.REMEMBERED))
    first = read(ledger)
    asked.clear()
    assert read(ledger) == first
    assert asked == []
    charge(ledger, "mimic/south", (LOUD, 1))
    second = read(ledger)
    changed = {path for path in second if second[path] != first.get(path)}
    assert changed >= {"mimic", "mimic/south"}
    assert second["mimic/north"] == first["mimic/north"]
    assert sum(asked) == 3, "of the population, the budget and the run"


@pytest.mark.parametrize("changed", ["less", "another", "none"])
def test_verify_finds_changed_counts(ledger: Ledger, changed: str) -> None:
    opened(ledger, "team")
    charge(ledger, "mimic/team", (LOUD, 3), (QUIET, 2))
    counts = dict(stored(ledger)["mimic/team"] or {})
    loud, quiet = (fingerprint_of(event) for event in (LOUD, QUIET))
    assert counts == {loud: 3, quiet: 2}
    written = {"less": counts | {loud: 2}, "another": {quiet: 5}, "none": {}}[changed]
    with tampering(ledger.database) as tx:
        set_balance(tx, "mimic/team", charges=json.dumps(written))
    found = verify(ledger.database)
    assert not found.sound
    assert any("counts of charges by event" in each for each in found.problems)
