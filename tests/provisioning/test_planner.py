"""Plans: complete, idempotent, parents first, and loud about what lowers protection."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.ledger.permissions import PERMISSIONS, Role
from app.ledger.policies import policy_of, stricter
from app.provisioning.changes import Operation, Plan
from app.provisioning.document import OrganisationDocument
from app.provisioning.planner import plan
from app.provisioning.state import Account, ApiKey, State, Versioned
from app.provisioning.state_reader import read_whole_state
from tests.provisioning.organisation import EMPTY, NOW, Organisation, budget, document, population
from tests.soak import few

LIMITS = st.fixed_dictionaries(
    {"epsilon": st.sampled_from([0.5, 1.0, 2, 8.0]), "delta": st.sampled_from([1e-6, 1e-5, 1e-4])}
)
POLICIES = st.fixed_dictionaries(
    {},
    optional={
        "max_epsilon": st.sampled_from([1.0, 2.0]),
        "require_limit": st.booleans(),
        "mechanisms": st.lists(st.sampled_from(["gaussian", "laplace", "zcdp"]), min_size=1, max_size=3, unique=True),
        "deviations": st.sampled_from(["flag", "refuse"]),
        "approvers_to_raise_limit": st.sampled_from([1, 2]),
    },
)
ALERTS = st.fixed_dictionaries(
    {"thresholds": st.lists(st.sampled_from([0.25, 0.5, 0.8, 1, 2.0]), unique=True, max_size=4).map(sorted)},
    optional={"forecast_days": st.sampled_from([0, 14, 30, 60])},
)
SETTINGS: dict[str, st.SearchStrategy[Any]] = {
    "policy": POLICIES,
    "alert_settings": ALERTS,
    "owner": st.sampled_from([None, "ada", "icu"]),
    "labels": st.dictionaries(st.sampled_from(["team", "cost"]), st.sampled_from(["x", "y"])),
    "links": st.lists(st.just({"title": "Wiki", "url": "https://wiki.example/"}), max_size=1),
}
NAMES = ["a", "b"]


@st.composite
def trees(draw: st.DrawFn, depth: int = 1) -> list[dict[str, Any]]:
    found = []
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True)):
        entry = draw(st.fixed_dictionaries({"limit": LIMITS}, optional=SETTINGS)) | {"name": name}
        if depth:
            entry["budgets"] = draw(trees(depth - 1))
        found.append(entry)
    return found


KEYS = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["x", "y", "z"]), "role": st.sampled_from(list(map(str, Role)))},
        optional={
            "expires_at": st.sampled_from(["2027-01-01T00:00:00Z", "2028-01-01T00:00:00Z"]),
            "scope": st.sampled_from(["a", "b"]),
        },
    ),
    unique_by=lambda key: key["name"],
    max_size=3,
)


@st.composite
def documents(draw: st.DrawFn) -> OrganisationDocument:
    unit = {"privacy_unit": "patient", "neighboring_relation": "add_or_remove_one"}
    populations = [entry | unit for entry in draw(trees())]
    house = draw(POLICIES)
    if draw(st.booleans()):
        house["approvers_to_create_population"] = draw(st.sampled_from([1, 2]))
    names = {entry["name"] for entry in populations}
    keys = [key for key in draw(KEYS) if key.get("scope", "a") in names or "scope" not in key]
    members: dict[str, Any] = {"populations": populations, "api_keys": keys}
    if draw(st.booleans()):
        members["policy"] = house
    return document(**members)


def is_complete(planned: Plan) -> bool:
    return not planned.changes and not planned.conflicts


def _careful(planned: Plan) -> Plan:
    """The changes of a plan that lower no protection."""
    return replace(planned, changes=tuple(change for change in planned.pending if not change.loosens))


def _protects_as_before(before: State, after: State) -> None:
    for path, old in before.accounts.items():
        new = after.accounts[path]
        assert new.limit.value["epsilon"] <= old.limit.value["epsilon"]
        assert new.limit.value["delta"] <= old.limit.value["delta"]
        assert old.policy is not None
        assert new.policy is not None
        was, now = policy_of(old.policy.value), policy_of(new.policy.value)
        assert replace(stricter(was, now), approvers_to_raise_limit=None, deviations=None) == replace(
            now, approvers_to_raise_limit=None, deviations=None
        )
        assert old.alert_settings is not None
        assert new.alert_settings is not None
        assert set(old.alert_settings["thresholds"]) <= set(new.alert_settings["thresholds"])
        assert old.alert_settings["forecast_days"] <= new.alert_settings["forecast_days"]
    for key in after.api_keys or ():
        olds = [each for each in before.api_keys or () if each.name == key.name]
        assert not olds or any(
            PERMISSIONS[Role(key.role)] <= PERMISSIONS[Role(each.role)]
            and each.scope in {None, key.scope}
            and (each.expires_at is None or (key.expires_at is not None and key.expires_at <= each.expires_at))
            for each in olds
        )


@settings(parent=few(5), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(documents(), documents(), st.data())
def test_any_organisation_is_as_described_after_it_was_applied_carefully_partly_unapproved_and_then_whole(
    new_organisation: Callable[[], Organisation],
    first: OrganisationDocument,
    then: OrganisationDocument,
    data: st.DataObject,
) -> None:
    organisation = new_organisation().settle(first)
    before = read_whole_state(organisation.api())
    organisation.apply(then, _careful)
    _protects_as_before(before, read_whole_state(organisation.api()))

    planned = organisation.plan(then)
    done = data.draw(st.integers(0, len(planned.changes)))
    organisation.apply(then, lambda found: replace(found, changes=found.changes[:done]))
    organisation.apply(then)
    again = organisation.plan(then)
    assert (again.pending, again.conflicts) == ((), ())  # nothing is proposed twice

    organisation.approve_all()
    after = read_whole_state(organisation.settle(then).api())
    untouched = set(organisation.plan(then).unmanaged) & set(before.accounts)
    for path, old in before.accounts.items():
        assert path in after.accounts
        assert path not in untouched or after.accounts[path] == old


def test_plan_has_the_policy_first_then_parents_then_keys() -> None:
    described = document(
        policy={"max_delta": 1e-5},
        populations=[population(budgets=[budget("icu", policy={"require_limit": True})])],
        api_keys=[{"name": "trainer", "role": "trainer", "scope": "mimic/icu"}],
    )
    order = [(str(change.resource), change.path) for change in plan(described, EMPTY).changes]
    created = [("population", "mimic"), ("budget", "mimic/icu"), ("policy", "mimic/icu")]
    assert order == [("policy", ""), *created, ("api_key", "trainer")]


PARALLEL = {"composition": "parallel", "attestation": "one site each"}


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
def test_fixed_terms_are_conflicts_that_say_what_to_do(
    organisation: Organisation, before: dict[str, Any], after: dict[str, Any], field: str
) -> None:
    organisation.settle(document(populations=[population(**before)]))
    planned = organisation.plan(document(populations=[population(**after)]))
    assert f"`{field}` is " in planned.conflicts[0].message
    assert "create a population of another name" in planned.conflicts[0].message


def test_window_of_a_budget_is_fixed_in_any_time_zone(organisation: Organisation) -> None:
    def closing(moment: str) -> OrganisationDocument:
        return document(populations=[population(budgets=[budget("q", closes_at=moment)])])

    organisation.settle(closing("2027-01-01T00:00:00Z"))
    assert is_complete(organisation.plan(closing("2027-01-01T01:00:00+01:00")))
    (conflict,) = organisation.plan(closing("2028-01-01T00:00:00Z")).conflicts
    assert "`closes_at` is 2027-01-01T00:00:00Z on the server and 2028-01-01T00:00:00Z in the file" in conflict.message


def test_proposed_population_holds_back_what_is_under_it(organisation: Organisation) -> None:
    described = document(
        policy={"approvers_to_create_population": 2},
        populations=[population(budgets=[budget("icu", alert_settings={"thresholds": [1.0]})])],
        api_keys=[{"name": "t", "role": "trainer", "scope": "mimic/icu"}, {"name": "all", "role": "viewer"}],
    )
    planned = organisation.plan(described)
    sent = [(str(change.resource), change.path) for change in planned.pending]
    assert sent == [("policy", ""), ("population", "mimic"), ("api_key", "all")]
    assert [change.path for change in planned.waiting] == ["mimic/icu", "mimic/icu", "t"]
    organisation.apply(described)
    again = organisation.plan(described)
    assert not again.pending
    (proposal,) = organisation.state(described).proposals
    assert again.waiting[0].reason == f"until another person approves {proposal.id}"
    (conflict,) = organisation.plan(document(populations=[population(size=5)])).conflicts
    assert f"{proposal.id} proposes this population with other terms" in conflict.message


@pytest.mark.parametrize(
    ("kind", "other", "wanted"),
    [
        ("limit", {"limit": {"epsilon": 9.5, "delta": 1e-5}}, {"limit": {"epsilon": 9.0, "delta": 1e-5}}),
        ("policy", {"policy": {"max_epsilon": 3.0}}, {"policy": {"max_epsilon": 2.0}}),
    ],
)
def test_another_proposal_has_to_be_decided_first(
    organisation: Organisation, kind: str, other: dict[str, Any], wanted: dict[str, Any]
) -> None:
    organisation.settle(document(populations=[population(policy={"max_epsilon": 1.0})]))
    organisation.apply(document(populations=[population(**other)]))
    (conflict,) = organisation.plan(document(populations=[population(**wanted)])).conflicts
    assert f"proposes another {kind}" in conflict.message


def test_parts_that_the_file_leaves_out_stay_as_they_are(organisation: Organisation) -> None:
    organisation.settle(
        document(
            policy={"max_epsilon": 1.0},
            populations=[population(policy={"require_limit": True}, alert_settings={"thresholds": [0.9]})],
            api_keys=[{"name": "x", "role": "viewer"}],
        )
    )
    assert is_complete(organisation.plan(document(populations=[population()])))
    assert organisation.plan(document()).unmanaged == ("mimic",)
    unmanaged = organisation.plan(document(api_keys=[])).unmanaged
    assert [each for each in unmanaged if "key_" not in each] == ["mimic", "API key x"]  # others have no name
    emptied = organisation.plan(document(policy={}, populations=[population(policy={})]))
    assert [change.loosens for change in emptied.pending] == [("loosens max_epsilon",), ("loosens require_limit",)]


def test_metadata_is_what_the_file_states_and_otherwise_stays(organisation: Organisation) -> None:
    first = population(owner="ada", labels={"team": "icu", "cost": "7"}, description="Stays.")
    organisation.settle(document(populations=[first]))
    (change,) = organisation.plan(document(populations=[population(owner=None, labels={"team": "lab"})])).changes
    assert change.before == {"owner": "ada", "labels": {"team": "icu", "cost": "7"}}
    assert change.after == {"owner": None, "labels": {"team": "lab"}}
    assert not change.loosens


def test_archived_account_is_a_conflict_in_the_file_and_hidden_elsewhere(organisation: Organisation) -> None:
    described = document(populations=[population(), population("old")])
    organisation.settle(described)
    organisation.api().post("accounts/old/archive", {})
    (conflict,) = organisation.plan(described).conflicts
    assert (conflict.path, "it is archived" in conflict.message) == ("old", True)
    alone = organisation.plan(document(populations=[population()]))
    assert (is_complete(alone), alone.unmanaged) == (True, ())


def _key(name: str = "x", role: str = "trainer", **members: Any) -> ApiKey:  # noqa: ANN401 - members of a key
    return ApiKey(**({"id": f"key_{name}", "scope": None, "expires_at": None} | members), name=name, role=role)


def _plan_key(described: dict[str, Any], *keys: ApiKey, caller: str = "key_me") -> Plan:
    state = replace(EMPTY, api_keys=keys, caller=caller)
    return plan(document(api_keys=[{"name": "x", "role": "trainer"} | described]), state)


def test_rotated_key_and_its_successor_are_one_and_an_unfinished_replacement_goes_on() -> None:
    old = _key(expires_at=NOW + timedelta(hours=1), id="key_old")
    assert is_complete(_plan_key({}, old, _key(id="key_new")))
    (change,) = _plan_key({}, _key(role="admin", id="key_old"), _key(id="key_new")).changes
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
    (change,) = _plan_key(new, old).changes
    assert (change.operation, change.revokes, change.loosens) == (Operation.REPLACE, (old.id,), loosens)


def test_key_never_revokes_itself_and_is_never_born_expired() -> None:
    assert "the key that you apply with" in _plan_key({}, _key(role="admin"), caller="key_x").conflicts[0].message
    assert "in the past" in _plan_key({"expires_at": "2020-01-01T00:00:00Z"}).conflicts[0].message
    assert "neither of the file nor of the server" in _plan_key({"scope": "nowhere"}).conflicts[0].message


MIMIC = Account(
    id="pop_1",
    path="mimic",
    terms={"privacy_unit": "patient", "neighboring_relation": "add_or_remove_one"},
    limit=Versioned({"epsilon": 8.0, "delta": 1e-5}),
    policy=Versioned({}),
    alert_settings={"thresholds": [0.5, 0.8, 1.0], "forecast_days": 30},
)


@pytest.mark.parametrize(
    ("changed", "loosens"),
    [
        ({"limit": {"epsilon": 8.0, "delta": 1e-5}}, None),
        ({"limit": {"epsilon": 9.0, "delta": 1e-5}}, ("raises the limit",)),
        ({"limit": {"epsilon": 7.0, "delta": 2e-5}}, ("raises the limit",)),
        ({"limit": {"epsilon": 9.0, "delta": 1e-6}}, ("raises the limit",)),
        ({"limit": {"epsilon": 7.0, "delta": 1e-5}}, ()),
        ({"limit": {"epsilon": 7.0, "delta": 1e-6}}, ()),
        ({"alert_settings": {"thresholds": [0.5, 0.8, 1.0], "forecast_days": 29}}, ("shortens the forecast",)),
        ({"alert_settings": {"thresholds": [0.5, 1.0], "forecast_days": 30}}, ("removes the threshold 0.8",)),
        ({"alert_settings": {"thresholds": []}}, ("removes the thresholds 0.5, 0.8, 1",)),
        ({"alert_settings": {"thresholds": [0.1, 0.5, 0.8, 1.0], "forecast_days": 31}}, ()),
        ({"policy": {"approvers_to_raise_limit": 1}}, ()),
    ],
)
def test_change_that_lowers_protection_says_how(changed: dict[str, Any], loosens: tuple[str, ...] | None) -> None:
    state = replace(EMPTY, accounts={"mimic": MIMIC})
    planned = plan(document(populations=[population(**changed)]), state)
    assert [change.loosens for change in planned.changes] == ([] if loosens is None else [loosens])
    if "limit" in changed and loosens is not None:
        assert planned.changes[0].before == MIMIC.limit.value


def test_one_approver_of_the_organisation_is_looser_than_no_rule() -> None:
    (change,) = plan(document(policy={"approvers_to_raise_limit": 1}), EMPTY).changes
    assert change.loosens == ("loosens approvers_to_raise_limit",)
