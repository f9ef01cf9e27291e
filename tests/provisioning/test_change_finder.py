"""Changes: complete, idempotent, parents first, and loud about what lowers protection."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from app.provisioning.change_finder import find_changes
from app.provisioning.changes import ChangeSet, Operation
from app.provisioning.document import OrganisationDocument, PopulationDocument
from app.provisioning.state import Account, ApiKey, State, Versioned, desired_terms
from tests.provisioning.organisation import EMPTY, NOW, Organisation, budget, document, population


def is_complete(found: ChangeSet) -> bool:
    return not found.changes and not found.conflicts


def test_changes_begin_with_the_policy_then_parents_then_keys() -> None:
    described = document(
        policy={"max_delta": 1e-5},
        populations=[population(budgets=[budget("icu", policy={"require_limit": True})])],
        api_keys=[{"name": "trainer", "role": "trainer", "scope": "mimic/icu"}],
    )
    order = [(str(change.resource), change.path) for change in find_changes(described, EMPTY).changes]
    created = [("population", "mimic"), ("budget", "mimic/icu"), ("policy", "mimic/icu")]
    assert order == [("policy", ""), *created, ("api_key", "trainer")]


PARALLEL = {"composition": "parallel", "attestation": "one site each"}


def present(**members: Any) -> State:  # noqa: ANN401 - members of a file
    """The state of a server with one population, as a file describes it."""
    described = PopulationDocument.model_validate(population(**members))
    return replace(EMPTY, accounts={"mimic": replace(MIMIC, terms=desired_terms(described))})


@pytest.mark.parametrize(
    ("before", "after", "field"),
    [
        ({}, {"size": 100}, "size"),
        ({"size": 100}, {}, "size"),
        ({}, {"privacy_unit": "record"}, "privacy_unit"),
        ({}, {"neighboring_relation": "replace_one"}, "neighboring_relation"),
        ({}, PARALLEL, "composition"),
        (PARALLEL, PARALLEL | {"attestation": "two sites each"}, "attestation"),
        ({}, {"planned": [{"event": {"type": "gaussian", "noise_multiplier": 2}}]}, "planned"),
    ],
)
def test_fixed_term_is_a_conflict_that_says_what_to_do(
    before: dict[str, Any], after: dict[str, Any], field: str
) -> None:
    message = find_changes(document(populations=[population(**after)]), present(**before)).conflicts[0].message
    assert f"`{field}` is " in message
    assert "create a population of another name" in message


def test_proposed_population_holds_back_what_is_under_it(organisation: Organisation) -> None:
    described = document(
        policy={"approvers_to_create_population": 2},
        populations=[population(budgets=[budget("icu", alert_settings={"thresholds": [1.0]})])],
        api_keys=[{"name": "t", "role": "trainer", "scope": "mimic/icu"}, {"name": "all", "role": "viewer"}],
    )
    found = organisation.changes(described)
    sent = [(str(change.resource), change.path) for change in found.pending]
    assert sent == [("policy", ""), ("population", "mimic"), ("api_key", "all")]
    assert [change.path for change in found.waiting] == ["mimic/icu", "mimic/icu", "t"]
    organisation.apply(described)
    again = organisation.changes(described)
    assert not again.pending
    (proposal,) = organisation.state(described).proposals
    assert again.waiting[0].reason == f"until another person approves {proposal.id}"
    (other,) = organisation.changes(document(populations=[population("eicu")])).changes
    assert (other.operation, other.path, other.reason) == (Operation.CREATE, "eicu", None)
    (conflict,) = organisation.changes(document(populations=[population(size=5)])).conflicts
    assert f"{proposal.id} proposes this population with other terms" in conflict.message


def test_another_proposal_is_decided_first_and_the_window_of_a_budget_is_fixed(organisation: Organisation) -> None:
    def described(closing: str = "2027-01-01T00:00:00Z", **members: Any) -> OrganisationDocument:  # noqa: ANN401 - of a file
        return document(populations=[population(budgets=[budget("q", closes_at=closing)], **members)])

    organisation.settle(described(policy={"max_epsilon": 1.0}))
    assert is_complete(organisation.changes(described("2027-01-01T01:00:00+01:00")))
    (conflict,) = organisation.changes(described("2028-01-01T00:00:00Z")).conflicts
    assert "`closes_at` is 2027-01-01T00:00:00Z on the server and 2028-01-01T00:00:00Z in the file" in conflict.message
    organisation.apply(described(limit={"epsilon": 9.5, "delta": 1e-5}, policy={"max_epsilon": 3.0}))
    wanted = described(limit={"epsilon": 9.0, "delta": 1e-5}, policy={"max_epsilon": 2.0})
    limit, policy = (conflict.message for conflict in organisation.changes(wanted).conflicts)
    assert "proposes another limit" in limit
    assert "proposes another policy" in policy


def test_parts_that_the_file_leaves_out_stay_as_they_are(organisation: Organisation) -> None:
    about: dict[str, Any] = {"owner": "ada", "labels": {"team": "icu", "cost": "7"}, "description": "Stays."}
    first = population(policy={"require_limit": True}, alert_settings={"thresholds": [0.9]}, **about)
    keys = [{"name": "x", "role": "viewer"}]
    organisation.settle(document(policy={"max_epsilon": 1.0}, populations=[first, population("old")], api_keys=keys))
    organisation.api().post("accounts/old/archive", {})
    alone = organisation.changes(document(populations=[population()]))
    assert (is_complete(alone), alone.unmanaged) == (True, ())
    (conflict,) = organisation.changes(document(populations=[population(), population("old")])).conflicts
    assert (conflict.path, "it is archived" in conflict.message) == ("old", True)
    assert organisation.changes(document()).unmanaged == ("mimic",)
    unmanaged = organisation.changes(document(api_keys=[])).unmanaged
    assert [each for each in unmanaged if "key_" not in each] == ["mimic", "API key x"]  # others have no name
    emptied = organisation.changes(document(policy={}, populations=[population(policy={})]))
    assert [change.loosens for change in emptied.pending] == [("loosens max_epsilon",), ("loosens require_limit",)]
    (change,) = organisation.changes(document(populations=[population(owner=None, labels={"team": "lab"})])).changes
    assert change.before == {"owner": "ada", "labels": {"team": "icu", "cost": "7"}}
    assert change.after == {"owner": None, "labels": {"team": "lab"}}
    assert not change.loosens


def _key(name: str = "x", role: str = "trainer", **members: Any) -> ApiKey:  # noqa: ANN401 - members of a key
    return ApiKey(**({"id": f"key_{name}", "scope": None, "expires_at": None} | members), name=name, role=role)


def _key_changes(described: dict[str, Any], *keys: ApiKey, caller: str = "key_me") -> ChangeSet:
    state = replace(EMPTY, api_keys=keys, caller=caller)
    return find_changes(document(api_keys=[{"name": "x", "role": "trainer"} | described]), state)


def test_rotated_key_and_its_successor_are_one_and_an_unfinished_replacement_goes_on() -> None:
    old = _key(expires_at=NOW + timedelta(hours=1), id="key_old")
    assert is_complete(_key_changes({}, old, _key(id="key_new")))
    (change,) = _key_changes({}, _key(role="admin", id="key_old"), _key(id="key_new")).changes
    assert (change.operation, change.after, change.revokes) == (Operation.REPLACE, {}, ("key_old",))
    assert not change.loosens


@pytest.mark.parametrize(
    ("old", "new", "loosens"),
    [
        (_key(role="viewer"), {}, ("widens the role viewer to trainer",)),
        (_key(role="admin"), {}, ()),
        (_key(expires_at=NOW + timedelta(1)), {}, ("expires later",)),
        (_key(), {"expires_at": "2027-01-01T00:00:00Z"}, ()),
        (_key(scope="run_1"), {}, ("widens the scope run_1 to the whole organisation",)),
    ],
)
def test_key_with_other_terms_is_replaced(old: ApiKey, new: dict[str, Any], loosens: tuple[str, ...]) -> None:
    (change,) = _key_changes(new, old).changes
    assert (change.operation, change.revokes, change.loosens) == (Operation.REPLACE, (old.id,), loosens)


def test_key_never_revokes_itself_and_is_never_born_expired() -> None:
    assert "the key that you apply with" in _key_changes({}, _key(role="admin"), caller="key_x").conflicts[0].message
    assert "in the past" in _key_changes({"expires_at": "2020-01-01T00:00:00Z"}).conflicts[0].message
    assert "neither of the file nor of the server" in _key_changes({"scope": "nowhere"}).conflicts[0].message


TERMS = {"privacy_unit": "patient", "neighboring_relation": "add_or_remove_one"}
ALERTS = {"thresholds": [0.5, 0.8, 1.0], "forecast_days": 30}
LIMIT = Versioned({"epsilon": 8.0, "delta": 1e-5})
MIMIC = Account(id="pop_1", path="mimic", terms=TERMS, limit=LIMIT, policy=Versioned({}), alert_settings=ALERTS)


def limit(epsilon: float, delta: float = 1e-5) -> dict[str, Any]:
    return {"limit": {"epsilon": epsilon, "delta": delta}}


def alerts(*thresholds: float, **days: int) -> dict[str, Any]:
    return {"alert_settings": {"thresholds": [*thresholds]} | days}


@pytest.mark.parametrize(
    ("changed", "loosens"),
    [
        (limit(8.0), None),
        *((limit(*raised), ("raises the limit",)) for raised in ((9.0,), (7.0, 2e-5), (9.0, 1e-6))),
        *((limit(*lowered), ()) for lowered in ((7.0,), (7.0, 1e-6))),
        (alerts(0.5, 0.8, 1.0, forecast_days=29), ("shortens the forecast",)),
        (alerts(0.5, 1.0, forecast_days=30), ("removes the threshold 0.8",)),
        (alerts(), ("removes the thresholds 0.5, 0.8, 1",)),
        (alerts(0.1, 0.5, 0.8, 1.0, forecast_days=31), ()),
        ({"policy": {"approvers_to_raise_limit": 2}}, ()),
    ],
)
def test_change_that_lowers_protection_says_how(changed: dict[str, Any], loosens: tuple[str, ...] | None) -> None:
    state = replace(EMPTY, accounts={"mimic": MIMIC})
    found = find_changes(document(populations=[population(**changed)]), state)
    assert [change.loosens for change in found.changes] == ([] if loosens is None else [loosens])
    if "limit" in changed and loosens is not None:
        assert found.changes[0].before == MIMIC.limit.value
    (change,) = find_changes(
        document(policy={"approvers_to_raise_limit": 1}), EMPTY
    ).changes  # one is less than no rule
    assert change.loosens == ("loosens approvers_to_raise_limit",)
