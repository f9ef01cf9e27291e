"""The filter of an account without a plan is tuned to its registered runs, whichever is charged first (ADR 0053)."""

from typing import Any

import pytest

from app.ledger.filter.filters import FilterWeights
from app.persistence.database import ALL_TENANTS
from app.persistence.repositories import accounts
from app.persistence.repositories.account_values import weights_text
from app.persistence.tables import accounts as rows
from app.service.verification.verify import verify
from tests.api.trainer import approve, audited, gaussian
from tests.ledgers import Ledger

RELEASE: dict[str, Any] = {"type": "laplace", "noise_multiplier": 10.0}
TRAINING: dict[str, Any] = {
    "type": "poisson_sampled",
    "sampling_probability": 0.001,
    "event": {"type": "gaussian", "noise_multiplier": 0.7},
}
LIMIT = {"epsilon": 3.0, "delta": 1e-5}
TUNED, UNTUNED = 47_477, 1_849
"""Steps of a training after a release under `LIMIT`: of a filter for both, and for the release alone. By Rényi curves
at the full delta, as accountants in a process do, 47,870 fit."""


def open_accounts(ledger: Ledger, **terms: Any) -> dict[str, str]:  # noqa: ANN401 - JSON is anything
    """Open a population and a budget, and get their ids by kind."""
    whole = ledger.population(limit=LIMIT)
    team = ledger.budget(limit=LIMIT, **terms)
    return {"populations": str(whole["id"]), "budgets": str(team["id"])}


def register(ledger: Ledger, event: dict[str, Any] | None, steps: int | None, **more: Any) -> str:  # noqa: ANN401 - as above
    return ledger.run(event=event, expected_steps=steps, **more)


def steps(ledger: Ledger, run: str, count: int = 1, **more: object) -> dict[str, Any]:
    reply = ledger.post(f"/v1/runs/{run}/steps", {"count": count} | more, "trainer")
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def read(ledger: Ledger, kind: str, ids: dict[str, str]) -> dict[str, Any]:
    return dict(ledger.get(f"/v1/{kind}/{ids[kind]}").json())


def weights(ledger: Ledger, ids: dict[str, str]) -> list[FilterWeights | None]:
    with ledger.database.read(ALL_TENANTS) as tx:
        return [record.account.weights for _, record, _ in accounts.list_all(tx) if record.account.id in ids.values()]


def sound(ledger: Ledger) -> bool:
    assert verify(ledger.database).problems == ()
    return True


@pytest.mark.parametrize("release_first", [True, False])
def test_order_of_first_charges_does_not_matter(ledger: Ledger, *, release_first: bool) -> None:
    open_accounts(ledger)
    release, training = register(ledger, RELEASE, 1), register(ledger, TRAINING, 40_000)
    answers = [steps(ledger, run) for run in ((release, training) if release_first else (training, release))]
    assert [each["warnings"] for each in answers] == [[], []]
    assert steps(ledger, training)["steps_remaining"] == TUNED - 2
    assert sound(ledger)


def test_order_of_registrations_does_not_matter(ledger: Ledger) -> None:
    ids = open_accounts(ledger)
    register(ledger, TRAINING, 40_000)
    release = register(ledger, RELEASE, 1)
    other = {each: str(ledger.budget("other", limit=LIMIT)["id"]) for each in ("budgets",)}
    register(ledger, RELEASE, 1, budget="mimic/other")
    register(ledger, TRAINING, 40_000, budget="mimic/other")
    [_, one], [two] = weights(ledger, ids), weights(ledger, other)
    assert one == two
    steps(ledger, release)
    assert sound(ledger)


def test_filter_is_tuned_again_until_the_first_charge(ledger: Ledger) -> None:
    ids = open_accounts(ledger)
    assert not any(weights(ledger, ids))
    release = register(ledger, RELEASE, 1)
    first = weights(ledger, ids)
    assert all(first)
    assert not read(ledger, "budgets", ids)["weights_frozen"]
    training = register(ledger, TRAINING, 40_000)
    second = weights(ledger, ids)
    assert all(one != two for one, two in zip(first, second, strict=True))
    steps(ledger, release)
    assert read(ledger, "budgets", ids)["weights_frozen"]
    register(ledger, gaussian(2.0), 50)
    assert weights(ledger, ids) == second
    assert steps(ledger, training)["steps_remaining"] == TUNED - 1
    assert sound(ledger)


def test_first_charge_that_a_filter_is_not_tuned_to_says_what_is_lost(ledger: Ledger) -> None:
    ids = open_accounts(ledger)
    release = register(ledger, RELEASE, 1)
    assert steps(ledger, release)["warnings"] == []
    training = register(ledger, TRAINING, 40_000)
    dry = ledger.post(f"/v1/runs/{training}/steps?dry_run=true", {"count": 1}, "trainer").json()
    reply = ledger.post(f"/v1/runs/{training}/steps", {"count": 1}, "trainer", Idempotency_Key="first").json()
    again = ledger.post(f"/v1/runs/{training}/steps", {"count": 1}, "trainer", Idempotency_Key="first").json()
    assert dry["warnings"] == reply["warnings"] == again["warnings"]
    assert [text.split(" is not tuned")[0] for text in reply["warnings"]] == [
        "The filter of mimic",
        "The filter of mimic/icu-team",
    ]
    assert all(f"{UNTUNED - 1:,} of the 39,999" in text and "instead of 39,999" in text for text in reply["warnings"])
    for kind, warning in zip(("populations", "budgets"), reply["warnings"], strict=True):
        assert read(ledger, kind, ids)["warnings"][-1] == warning
    assert steps(ledger, training)["warnings"] == []
    [decided] = ledger.get(f"/v1/decisions?run={training}&limit=200").json()["items"][-1:]
    assert decided["warnings"] == reply["warnings"]
    ledger.post(f"/v1/runs/{training}/abort", {}, "trainer").raise_for_status()
    assert not any("not tuned" in text for text in read(ledger, "budgets", ids)["warnings"])
    assert sound(ledger)


def test_first_charge_behind_a_refusal_is_warned_of_too(ledger: Ledger) -> None:
    """A run that was refused may be decided by counting from then on."""
    open_accounts(ledger)
    steps(ledger, register(ledger, RELEASE, 1))
    short, training = register(ledger, TRAINING, 1), register(ledger, TRAINING, 40_000)
    steps(ledger, short)
    refused = ledger.post(f"/v1/runs/{training}/steps", {"count": 40_000}, "trainer")
    assert refused.status_code == 403
    assert len(steps(ledger, training)["warnings"]) == 2
    assert steps(ledger, training)["warnings"] == []


def test_reserved_first_charge_is_warned_of(ledger: Ledger) -> None:
    open_accounts(ledger)
    steps(ledger, register(ledger, RELEASE, 1))
    training = register(ledger, TRAINING, 40_000, reserve=[{"event": TRAINING, "count": 100}], lease_seconds=600)
    assert len(steps(ledger, training)["warnings"]) == 2
    assert sound(ledger)


@pytest.mark.parametrize("expected", [None, 1_900])
def test_few_or_unknown_steps_are_no_warning(ledger: Ledger, expected: int | None) -> None:
    ids = open_accounts(ledger)
    steps(ledger, register(ledger, RELEASE, 1))
    training = register(ledger, TRAINING, expected)
    assert steps(ledger, training)["warnings"] == []
    assert not any("not tuned" in text for text in read(ledger, "budgets", ids)["warnings"])


def test_event_that_was_not_declared_is_warned_of(ledger: Ledger) -> None:
    open_accounts(ledger)
    register(ledger, RELEASE, 1)
    training = register(ledger, None, 40_000)
    answer = steps(ledger, training, event=TRAINING)
    assert len(answer["warnings"]) == 2
    assert sound(ledger)


def test_declared_plan_is_left_alone(ledger: Ledger) -> None:
    ids = open_accounts(ledger, planned=[{"event": TRAINING}])
    before = weights(ledger, ids)
    release = register(ledger, RELEASE, 1)
    after = weights(ledger, ids)
    assert (before[1], before[0], bool(after[0])) == (after[1], None, True)
    steps(ledger, release)
    assert sound(ledger)


def test_ended_runs_and_returned_reservations_leave_a_filter_free(ledger: Ledger) -> None:
    ids = open_accounts(ledger)
    release = register(ledger, RELEASE, 1)
    ledger.post(f"/v1/runs/{release}/abort", {}, "trainer").raise_for_status()
    held = register(ledger, gaussian(20.0), 10, reserve=[{"event": gaussian(20.0), "count": 10}], lease_seconds=600)
    frozen = weights(ledger, ids)
    assert read(ledger, "budgets", ids)["weights_frozen"]
    register(ledger, TRAINING, 40_000)
    assert weights(ledger, ids) == frozen
    reservation = ledger.get(f"/v1/runs/{held}").json()["reservation"]
    ledger.post(f"/v1/reservations/{reservation}/void", None, "trainer").raise_for_status()
    ledger.post(f"/v1/runs/{held}/abort", {}, "trainer").raise_for_status()
    training = register(ledger, TRAINING, 40_000)
    assert all(one != two for one, two in zip(weights(ledger, ids), frozen, strict=True))
    assert steps(ledger, training)["steps_remaining"] > TUNED
    assert sound(ledger)


@pytest.mark.parametrize("epsilon", [2.0, 4.0])
def test_changed_limit_of_an_untouched_account_tunes_it_again(ledger: Ledger, epsilon: float) -> None:
    ids = open_accounts(ledger)
    release, training = register(ledger, RELEASE, 1), register(ledger, TRAINING, 40_000)
    before = weights(ledger, ids)
    for account in ids.values():
        proposed = ledger.set_limit(account, epsilon)
        if proposed.status_code != 200:
            approve(ledger, proposed)
    assert all(one != two for one, two in zip(weights(ledger, ids), before, strict=True))
    assert sound(ledger)
    steps(ledger, release)
    left = steps(ledger, training)["steps_remaining"]
    for account in ids.values():  # now its orders stay
        proposed = ledger.set_limit(account, 3.0)
        if proposed.status_code != 200:
            approve(ledger, proposed)
    assert (steps(ledger, training)["steps_remaining"] > left) is (epsilon < 3.0)
    assert sound(ledger)


def test_limit_in_another_unit_has_no_weights_until_it_is_epsilon_again(ledger: Ledger) -> None:
    ids = open_accounts(ledger)
    run = register(ledger, gaussian(50.0), 100)
    register(ledger, gaussian(40.0), 100)
    before = weights(ledger, ids)
    for limit in ({"rho": 0.1}, LIMIT):
        body = {"limit": limit, "reason": "The board has met."}
        proposed = ledger.post(f"/v1/accounts/{ids['budgets']}/limit", body, If_Match="*")
        if proposed.status_code != 200:
            approve(ledger, proposed)
        assert weights(ledger, ids)[1] == (None if limit is not LIMIT else before[1])
        assert sound(ledger)
    assert steps(ledger, run)["warnings"] == []
    assert sound(ledger)


def test_parts_are_not_added_up(ledger: Ledger) -> None:
    ledger.population(limit=LIMIT)
    whole = ledger.budget(
        limit=LIMIT, composition="parallel", max_partitions_per_unit=1, attestation="One site treats each patient."
    )
    for name in ("north", "south"):
        ledger.budget(name, "mimic/icu-team", limit=LIMIT)
    runs = [register(ledger, RELEASE, 1, budget="mimic/icu-team/north") for _ in range(40)]
    training = register(ledger, TRAINING, 40_000, budget="mimic/icu-team/south")
    assert all(weights(ledger, {"budgets": str(whole["id"])}))
    for run in runs[:5]:
        steps(ledger, run)
    assert steps(ledger, training)["warnings"] == []
    assert sound(ledger)


def test_registration_records_what_it_tuned(ledger: Ledger) -> None:
    ids = open_accounts(ledger)
    register(ledger, RELEASE, 1)
    register(ledger, RELEASE, 1)
    [first, second] = audited(ledger, "action=run.created")
    assert set(first["after"]["tuned"]["weights"]) == set(ids.values())
    assert "tuned" not in second["after"]


@pytest.mark.parametrize("charged", [False, True])
def test_verification_finds_weights_that_no_registration_chose(ledger: Ledger, *, charged: bool) -> None:
    ids = open_accounts(ledger)
    release = register(ledger, RELEASE, 1)
    [_, alone] = weights(ledger, ids)
    training = register(ledger, TRAINING, 40_000)
    if charged:
        steps(ledger, release)
        steps(ledger, training)
    assert sound(ledger)
    with ledger.database.write(ALL_TENANTS) as tx:
        tx.execute(rows.update().where(rows.c.id == ids["budgets"]).values(filter_weights=weights_text(alone)))
    [problem] = verify(ledger.database).problems
    assert "its filter weights are not those of" in problem
