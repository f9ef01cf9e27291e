"""Policies: the strictest of all holds, whatever the order, and what it forbids is what one of them forbids."""

from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting import events as dp
from app.accounting.events import DpEvent, NeighboringRelation
from app.ledger.errors import InvalidInputError, PolicyViolationError
from app.ledger.filter.limits import Limit
from app.ledger.governance import policy_checks
from app.ledger.governance.policy_checks import (
    Size,
    require_limit_allowed,
    require_relation,
    require_reporter,
    require_steps,
)
from app.ledger.permissions import Role
from app.ledger.settings import policies
from app.ledger.settings.policies import ORGANISATION, PolicySource, effective, loosened, stricter
from app.ledger.settings.policy_rules import LEAVES, PERSONS, DeviationHandling, Policy, RequirePlan

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE


def _maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


POLICIES = st.builds(
    Policy,
    max_epsilon=_maybe(st.floats(0.1, 10)),
    max_delta=_maybe(st.floats(1e-9, 1e-3)),
    require_delta_below_inverse_size=st.booleans(),
    require_limit=st.booleans(),
    require_plan=st.none() | st.sampled_from(RequirePlan),
    require_starts_from=st.booleans(),
    mechanisms=_maybe(st.frozensets(st.sampled_from(LEAVES))),
    neighboring_relations=_maybe(st.frozensets(st.sampled_from(NeighboringRelation))),
    min_noise_multiplier=_maybe(st.floats(0.1, 10)),
    approval_above_epsilon=_maybe(st.floats(0.1, 10)),
    max_unapproved_epsilon_per_budget=_maybe(st.floats(0.1, 10)),
    report_roles=_maybe(st.frozensets(st.sampled_from([Role.TRAINER, Role.ADMIN]))),
    approvers_to_raise_limit=_maybe(st.sampled_from([1, 2])),
    approvers_to_create_population=_maybe(st.sampled_from([1, 2])),
    deviations=_maybe(st.sampled_from(DeviationHandling)),
)
EVENTS: st.SearchStrategy[DpEvent] = st.sampled_from(
    [
        dp.Gaussian(1.0),
        dp.PoissonSampled(0.1, dp.Gaussian(3.0)),
        dp.Laplace(2.0),
        dp.Composed((dp.Gaussian(5.0), dp.Laplace(0.7))),
        dp.Zcdp(0.1),
        dp.RepeatAndSelect(dp.PoissonSampled(0.1, dp.Gaussian(8.0)), 3.0, 1.0),
    ]
)


def _allows(policy: Policy, check: Callable[[tuple[PolicySource, ...]], None]) -> bool:
    try:
        check((PolicySource("p", policy),))
    except PolicyViolationError:
        return False
    return True


CHECKS: st.SearchStrategy[Callable[[tuple[PolicySource, ...]], None]] = st.one_of(
    st.builds(lambda event: lambda sources: require_steps(sources, ADD, [event]), EVENTS),
    st.builds(
        lambda relation: lambda sources: require_relation(sources, relation), st.sampled_from(NeighboringRelation)
    ),
    st.builds(lambda role: lambda sources: require_reporter(sources, role), st.sampled_from(Role)),
    st.builds(
        lambda delta, size: lambda sources: require_limit_allowed(sources, Limit(1.0, delta), size),
        st.floats(1e-9, 1e-3),
        _maybe(st.integers(1, 10**6)),
    ),
    st.builds(
        lambda epsilon, delta, limited, planned: (
            lambda sources: policy_checks.require_run(sources, Size(epsilon, delta), limited=limited, planned=planned)
        ),
        st.floats(0.1, 10),
        st.floats(1e-9, 1e-3),
        st.booleans(),
        st.booleans(),
    ),
)


@given(POLICIES, POLICIES, st.sampled_from([ORGANISATION, "p"]))
def test_a_stricter_policy_loosens_nothing_and_the_way_back_loosens_what_it_changed(
    before: Policy, other: Policy, where: str
) -> None:
    after = stricter(before, other)
    if where == ORGANISATION and (before.approvers_to_raise_limit, other.approvers_to_raise_limit) == (None, 1):
        assert loosened(before, after, of_organisation=True) == ("approvers_to_raise_limit",)
        return
    assert loosened(before, after, of_organisation=where == ORGANISATION) == ()
    back = loosened(after, before, of_organisation=where == ORGANISATION)
    changed = {name for name in Policy.__dataclass_fields__ if getattr(before, name) != getattr(after, name)}
    defaults = {
        "approvers_to_raise_limit": 2 if where == ORGANISATION else 1,
        "approvers_to_create_population": 1,
        "deviations": DeviationHandling.FLAG,
    }
    said = {name for name in changed if getattr(before, name) is None and defaults.get(name) == getattr(after, name)}
    assert set(back) == changed - said


@given(POLICIES, POLICIES, CHECKS)
def test_a_policy_that_loosens_nothing_allows_nothing_that_the_one_before_forbade(
    before: Policy, after: Policy, check: Callable[[tuple[PolicySource, ...]], None]
) -> None:
    kept = {name: getattr(before, name) for name in loosened(before, after, of_organisation=False)}
    mended = replace(after, **kept)
    assert loosened(before, mended, of_organisation=False) == ()
    assert _allows(before, check) or not _allows(mended, check)


@given(POLICIES, POLICIES, POLICIES)
def test_the_order_in_which_policies_are_put_together_does_not_matter(a: Policy, b: Policy, c: Policy) -> None:
    assert stricter(stricter(a, b), c) == stricter(a, stricter(b, c))
    assert stricter(a, b) == stricter(b, a)
    assert stricter(a, a) == a == stricter(a, policies.EMPTY_POLICY)


@given(POLICIES, POLICIES, CHECKS)
def test_both_policies_together_forbid_what_one_of_them_forbids_and_nothing_else(
    a: Policy, b: Policy, check: Callable[[tuple[PolicySource, ...]], None]
) -> None:
    both = _allows(a, check) and _allows(b, check)
    assert _allows(stricter(a, b), check) == both
    if both:
        check((PolicySource("p/a", a), PolicySource("p/b", b)))
        return
    with pytest.raises(PolicyViolationError) as caught:
        check((PolicySource("p/a", a), PolicySource("p/b", b)))
    assert caught.value.members["policy"] in {"p/a", "p/b"}
    assert caught.value.members["rule"] in Policy.__dataclass_fields__


@given(POLICIES)
def test_a_policy_is_read_as_it_was_written(policy: Policy) -> None:
    assert policies.policy_of(policies.facts_of(policy)) == policy


def test_one_person_is_enough_only_where_the_organisation_says_so() -> None:
    one = Policy(approvers_to_raise_limit=1)
    assert effective(()).approvers_to_raise_limit == PERSONS
    assert effective((PolicySource("p", one),)).approvers_to_raise_limit == 2
    assert effective((PolicySource(ORGANISATION, one),)).approvers_to_raise_limit == 1
    assert effective((PolicySource(ORGANISATION, one), PolicySource("p", one))).approvers_to_raise_limit == 1


@pytest.mark.parametrize(("persons", "needed"), [(1, ["require_limit"]), (2, []), (None, [])])
def test_most_without_approval_can_be_bypassed_where_one_person_raises_limits(
    persons: int | None, needed: list[str]
) -> None:
    above, own = Policy(approvers_to_raise_limit=persons), Policy(max_unapproved_epsilon_per_budget=1.0)
    for each, expected in ((own, needed), (replace(own, require_limit=True), [])):
        holds = effective((PolicySource(ORGANISATION, above), PolicySource("p", each)))
        assert [warning.requires for warning in policies.warnings_about(each, holds, above)] == expected


def test_policy_with_an_unknown_mechanism_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="poisson_sampled"):
        Policy(mechanisms=frozenset({"poisson_sampled"}))


@pytest.mark.parametrize(
    ("event", "noise"),
    [
        (dp.Gaussian(1.5), 1.5),
        (dp.PoissonSampled(0.1, dp.Gaussian(1.5)), 1.5),
        (dp.Composed((dp.Gaussian(3.0), dp.PoissonSampled(0.1, dp.Laplace(0.5)), dp.Zcdp(0.1))), 0.5),
        (dp.SelfComposed(dp.Composed((dp.Gaussian(3.0), dp.Gaussian(2.0))), 5), 2.0),
        (dp.GroupPrivacy(3, dp.Gaussian(4.0)), 4.0),
        (dp.RepeatAndSelect(dp.Gaussian(4.0), 3.0, None), 4.0),
        (dp.AdaptiveClipping(noise_multiplier=1.2), 1.2),
        (dp.AdaptiveClipping(gradient_noise_multiplier=1.0, count_noise_stddev=0.5), 1 / sqrt(2)),
        (dp.Decay("time", 1.0, 3, dp.Gaussian(6.0)), 2.0),
        (dp.Decay("step", 0.5, 2, dp.PoissonSampled(0.1, dp.Gaussian(8.0)), 1), 2.0),
        (dp.Zcdp(0.1), None),
        (dp.EpsilonDelta(1.0, 1e-9), None),
    ],
)
def test_the_smallest_noise_is_found_however_deep_it_lies(event: DpEvent, noise: float | None) -> None:
    assert dp.smallest_noise(event) == (None if noise is None else pytest.approx(noise))


def test_mechanisms_are_found_however_deep_they_lie() -> None:
    event = dp.PoissonSampled(0.5, dp.Composed((dp.SelfComposed(dp.Gaussian(1.0), 3), dp.Laplace(2.0))))
    assert dp.mechanisms_in(event) == [dp.Gaussian(1.0), dp.Laplace(2.0)]
    sources = (PolicySource("a", Policy(mechanisms=frozenset({"gaussian"}))),)
    with pytest.raises(PolicyViolationError) as caught:
        require_steps(sources, ADD, [event])
    assert caught.value.members == {"policy": "a", "rule": "mechanisms", "value": "laplace", "allowed": ["gaussian"]}
    assert caught.value.detail == "The policy of a does not allow this: mechanisms is gaussian, and this is laplace."
    require_steps(sources, ADD, [dp.NoOp(), dp.Composed((dp.PoissonSampled(0, event), dp.Gaussian(1.0)))])


def test_of_two_policies_that_forbid_it_the_one_higher_up_is_named() -> None:
    sources = (
        PolicySource(ORGANISATION, Policy(min_noise_multiplier=1.0)),
        PolicySource("mimic", Policy(min_noise_multiplier=2.0)),
    )
    for noise, policy, allowed in ((0.5, ORGANISATION, 1.0), (1.5, "mimic", 2.0)):
        with pytest.raises(PolicyViolationError) as caught:
            require_steps(sources, ADD, [dp.Gaussian(noise)])
        assert (caught.value.members["policy"], caught.value.members["allowed"]) == (policy, allowed)
