"""Plans: complete, idempotent, parents first, and loud about what lowers protection."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ledger.permissions import PERMISSIONS, Role
from app.ledger.policies import policy_of, stricter
from app.provisioning.changes import Operation, Plan, Resource
from app.provisioning.document import OrganisationDocument
from app.provisioning.planner import plan
from app.provisioning.state import ApiKey, Proposal, State
from tests.provisioning.model_server import EMPTY, NOW, applied, budget, document, population

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
def trees(draw: st.DrawFn, depth: int = 2) -> list[dict[str, Any]]:
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


def settled(described: OrganisationDocument, state: State) -> State:
    """The state after applying a file until nothing is left, everything being approved."""
    for _ in range(3):
        planned = plan(described, state)
        assert not planned.conflicts, planned.conflicts
        if not planned.changes:
            return state
        state = applied(described, state, planned)
    raise AssertionError(plan(described, state))


@given(documents())
def test_an_empty_server_is_as_described_after_all_is_applied(described: OrganisationDocument) -> None:
    assert is_complete(plan(described, settled(described, EMPTY)))


@given(documents(), documents())
def test_any_server_is_as_described_after_all_is_applied_and_nothing_else_goes(
    first: OrganisationDocument, then: OrganisationDocument
) -> None:
    before = settled(first, EMPTY)
    after = settled(then, before)
    assert is_complete(plan(then, after))
    assert before.accounts.keys() <= after.accounts.keys()
    untouched = set(plan(then, after).unmanaged) & set(before.accounts)
    assert all(after.accounts[path] == before.accounts[path] for path in untouched)


@given(documents(), documents())
def test_nothing_is_proposed_twice(first: OrganisationDocument, then: OrganisationDocument) -> None:
    state = settled(first, EMPTY)
    state = applied(then, state, plan(then, state), approved=False)
    again = plan(then, state)
    assert not again.pending
    assert not again.conflicts
    assert applied(then, state, again, approved=False) == state


@given(documents(), documents())
def test_without_loosening_no_protection_is_lowered(first: OrganisationDocument, then: OrganisationDocument) -> None:
    before = settled(first, EMPTY)
    planned = plan(then, before)
    careful = replace(planned, changes=tuple(change for change in planned.pending if not change.loosens))
    if any(change.note for change in careful.pending if change.resource is Resource.POPULATION):
        return  # what waits for the population is not of this plan
    after = applied(then, before, careful)
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


@given(documents(), documents(), st.data())
def test_an_apply_that_fails_in_the_middle_goes_on(
    first: OrganisationDocument, then: OrganisationDocument, data: st.DataObject
) -> None:
    state = settled(first, EMPTY)
    planned = plan(then, state)
    done = data.draw(st.integers(0, len(planned.changes)))
    state = applied(then, state, replace(planned, changes=planned.changes[:done]))
    assert is_complete(plan(then, settled(then, state)))


def test_the_policy_comes_first_then_parents_then_keys() -> None:
    described = document(
        policy={"max_delta": 1e-5},
        populations=[population(budgets=[budget("icu", policy={"require_limit": True})])],
        api_keys=[{"name": "trainer", "role": "trainer", "scope": "mimic/icu"}],
    )
    order = [(change.resource, change.path) for change in plan(described, EMPTY).changes]
    assert order == [
        ("policy", ""),
        ("population", "mimic"),
        ("budget", "mimic/icu"),
        ("policy", "mimic/icu"),
        ("api_key", "trainer"),
    ]


@pytest.mark.parametrize(
    ("before", "after", "field"),
    [
        ({}, {"size": 100}, "size"),
        ({"size": 100}, {}, "size"),
        ({}, {"privacy_unit": "record"}, "privacy_unit"),
        ({}, {"neighboring_relation": "replace_one"}, "neighboring_relation"),
        ({}, {"composition": "parallel", "attestation": "one site each"}, "composition"),
        (
            {"composition": "parallel", "attestation": "one site each"},
            {"composition": "parallel", "attestation": "two sites each"},
            "attestation",
        ),
        ({}, {"planned": [{"event": {"type": "gaussian", "noise_multiplier": 2}}]}, "planned"),
    ],
)
def test_terms_that_are_fixed_are_conflicts_that_say_what_to_do(
    before: dict[str, Any], after: dict[str, Any], field: str
) -> None:
    state = settled(document(populations=[population(**before)]), EMPTY)
    planned = plan(document(populations=[population(**after)]), state)
    assert f"`{field}` is " in planned.conflicts[0].message
    assert "create a population of another name" in planned.conflicts[0].message


def test_a_window_and_a_block_are_fixed() -> None:
    first = document(populations=[population(budgets=[budget("q", closes_at="2027-01-01T00:00:00Z")])])
    state = settled(first, EMPTY)
    same = document(populations=[population(budgets=[budget("q", closes_at="2027-01-01T01:00:00+01:00")])])
    assert is_complete(plan(same, state))
    later = document(populations=[population(budgets=[budget("q", closes_at="2028-01-01T00:00:00Z")])])
    (conflict,) = plan(later, state).conflicts
    assert "`closes_at` is 2027-01-01T00:00:00Z on the server and 2028-01-01T00:00:00Z in the file" in conflict.message


def test_a_proposed_population_holds_back_what_is_under_it() -> None:
    described = document(
        policy={"approvers_to_create_population": 2},
        populations=[population(budgets=[budget("icu", alert_settings={"thresholds": [1.0]})])],
        api_keys=[{"name": "t", "role": "trainer", "scope": "mimic/icu"}, {"name": "all", "role": "viewer"}],
    )
    planned = plan(described, EMPTY)
    sent = [(change.resource, change.path) for change in planned.pending]
    assert sent == [("policy", ""), ("population", "mimic"), ("api_key", "all")]
    assert [change.path for change in planned.waiting] == ["mimic/icu", "mimic/icu", "t"]
    state = applied(described, EMPTY, planned, approved=False)
    again = plan(described, state)
    assert not again.pending
    assert again.waiting[0].reason == "until another person approves prp_0"
    changed = document(populations=[population(size=5)])
    (conflict,) = plan(changed, state).conflicts
    assert "prp_0 proposes this population with other terms" in conflict.message


@pytest.mark.parametrize("kind", ["limit", "policy"])
def test_another_proposal_has_to_be_decided_first(kind: str) -> None:
    state = settled(document(populations=[population(policy={"max_epsilon": 1.0})]), EMPTY)
    other = {"limit": {"limit": {"epsilon": 9.5, "delta": 1e-5}}, "policy": {"policy": {"max_epsilon": 3.0}}}[kind]
    state = replace(state, proposals=(Proposal("prp_1", kind, "id_of_mimic", other),))
    wanted: dict[str, Any] = {
        "limit": {"limit": {"epsilon": 9.0, "delta": 1e-5}},
        "policy": {"policy": {"max_epsilon": 2.0}},
    }[kind]
    planned = plan(document(populations=[population(**wanted)]), state)
    assert f"prp_1 proposes another {kind}" in planned.conflicts[0].message


def test_what_the_file_leaves_out_is_left_as_it_is() -> None:
    full = document(
        policy={"max_epsilon": 1.0},
        populations=[population(policy={"require_limit": True}, alert_settings={"thresholds": [0.9]})],
        api_keys=[{"name": "x", "role": "viewer"}],
    )
    state = settled(full, EMPTY)
    assert is_complete(plan(document(populations=[population()]), state))
    assert plan(document(), state).unmanaged == ("mimic",)
    assert plan(document(api_keys=[]), state).unmanaged == ("mimic", "API key x")
    emptied = plan(document(policy={}, populations=[population(policy={})]), state)
    assert [change.loosens for change in emptied.pending] == [("loosens max_epsilon",), ("loosens require_limit",)]


def test_metadata_is_what_the_file_states_and_otherwise_stays() -> None:
    first = population(owner="ada", labels={"team": "icu", "cost": "7"}, description="Stays.")
    state = settled(document(populations=[first]), EMPTY)
    (change,) = plan(document(populations=[population(owner=None, labels={"team": "lab"})]), state).changes
    assert change.before == {"owner": "ada", "labels": {"team": "icu", "cost": "7"}}
    assert change.after == {"owner": None, "labels": {"team": "lab"}}
    assert not change.loosens


def test_an_archived_account_is_a_conflict_in_the_file_and_hidden_elsewhere() -> None:
    described = document(populations=[population(), population("old")])
    state = settled(described, EMPTY)
    archived = replace(state.accounts["old"], is_archived=True)
    state = replace(state, accounts={**state.accounts, "old": archived})
    (conflict,) = plan(described, state).conflicts
    assert (conflict.path, "it is archived" in conflict.message) == ("old", True)
    assert is_complete(plan(document(populations=[population()]), state))
    assert not plan(document(populations=[population()]), state).unmanaged


def _key(name: str = "x", role: str = "trainer", **members: Any) -> ApiKey:  # noqa: ANN401 - members of a key
    return ApiKey(**({"id": f"key_{name}", "scope": None, "expires_at": None} | members), name=name, role=role)


def _plan_key(described: dict[str, Any], *keys: ApiKey, caller: str = "key_me") -> Plan:
    state = replace(EMPTY, api_keys=keys, caller=caller)
    return plan(document(api_keys=[{"name": "x", "role": "trainer"} | described]), state)


def test_a_rotated_key_and_its_successor_are_one() -> None:
    old = _key(expires_at=NOW + timedelta(hours=1), id="key_old")
    assert is_complete(_plan_key({}, old, _key(id="key_new")))


def test_a_replacement_that_stopped_before_the_revocation_goes_on() -> None:
    planned = _plan_key({}, _key(role="admin", id="key_old"), _key(id="key_new"))
    (change,) = planned.changes
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
def test_a_key_with_other_terms_is_replaced(old: ApiKey, new: dict[str, Any], loosens: tuple[str, ...]) -> None:
    (change,) = _plan_key(new, old).changes
    assert (change.operation, change.revokes, change.loosens) == (Operation.REPLACE, (old.id,), loosens)


def test_a_key_never_revokes_itself_and_is_never_born_expired() -> None:
    assert "the key that you apply with" in _plan_key({}, _key(role="admin"), caller="key_x").conflicts[0].message
    assert "in the past" in _plan_key({"expires_at": "2020-01-01T00:00:00Z"}).conflicts[0].message
    assert "neither of the file nor of the server" in _plan_key({"scope": "nowhere"}).conflicts[0].message


def test_that_one_person_raises_limits_is_looser_than_no_rule_of_the_organisation() -> None:
    (change,) = plan(document(policy={"approvers_to_raise_limit": 1}), EMPTY).changes
    assert change.loosens == ("loosens approvers_to_raise_limit",)
    state = settled(document(populations=[population()]), EMPTY)
    (change,) = plan(document(populations=[population(policy={"approvers_to_raise_limit": 1})]), state).changes
    assert not change.loosens


@pytest.mark.parametrize(
    ("epsilon", "delta", "raised"),
    [
        (8.0, 1e-5, None),
        (9.0, 1e-5, True),
        (7.0, 2e-5, True),
        (9.0, 1e-6, True),
        (7.0, 1e-5, False),
        (7.0, 1e-6, False),
    ],
)
def test_a_limit_that_is_raised_in_either_number_lowers_protection(
    *, epsilon: float, delta: float, raised: bool | None
) -> None:
    state = settled(document(populations=[population()]), EMPTY)
    planned = plan(document(populations=[population(limit={"epsilon": epsilon, "delta": delta})]), state)
    assert [bool(change.loosens) for change in planned.changes] == ([] if raised is None else [raised])
    assert [change.before for change in planned.changes] == [{"epsilon": 8.0, "delta": 1e-5}] * len(planned.changes)


@pytest.mark.parametrize(
    ("after", "loosens"),
    [
        ({"thresholds": [0.5, 0.8, 1.0], "forecast_days": 29}, ("shortens the forecast",)),
        ({"thresholds": [0.5, 1.0], "forecast_days": 30}, ("removes the threshold 0.8",)),
        ({"thresholds": []}, ("removes the thresholds 0.5, 0.8, 1",)),
        ({"thresholds": [0.1, 0.5, 0.8, 1.0], "forecast_days": 31}, ()),
    ],
)
def test_fewer_alerts_lower_protection(after: dict[str, Any], loosens: tuple[str, ...]) -> None:
    state = settled(document(populations=[population()]), EMPTY)
    (change,) = plan(document(populations=[population(alert_settings=after)]), state).changes
    assert change.loosens == loosens
