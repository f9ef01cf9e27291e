"""The client's values have the members of the API's schemas, under the same names."""

import typing
from dataclasses import fields, is_dataclass

import pytest

import epsilon_ledger
from epsilon_ledger import Allocation, PolicyRules, Share, UnlockByPlans, UnlockOverTime
from tests.sdk.documented_api import DOCUMENT

SCHEMAS = DOCUMENT["components"]["schemas"]
# By the client's name: the schema of another name.
RENAMED = {"RunState": "Run", "AccountShare": "Share"}
# The client's own, or of several schemas.
OWN = {
    "Experiment": {"trials"},
    "RunHistory": {"next_cursor"},
    **{name: {"etag"} for name in ("AccountAllocation", "AccountBlockSchedule", "AccountLimit", "AccountPolicy")},
}
# Not responses of the API.
NO_SCHEMA = {
    *("ParallelComposition", "Problem", "RdpComparison", "PlanUsage", "LatestLimitChange", "Trial"),
    *("Alternative", "RaisedLimit", "UnavailableAlternative"),
}
WHOLE = [
    "AccountAllocation",
    "AccountQueue",
    "AccountShare",
    "QueueEntry",
    "Shortage",
    "Waiting",
    "AccountHistory",
    "AccountLimit",
    "AccountPolicy",
    "Alert",
    "AlertSettings",
    "ApiKey",
    "ArchivedAccount",
    "AuditEvent",
    "AccountBlockSchedule",
    "AvailableEpsilon",
    "BlockSchedule",
    "Budget",
    "LimitReached",
    "ChildShare",
    "CreatedApiKey",
    "Decision",
    "Delivery",
    "Discrepancy",
    "Experiment",
    "Forecast",
    "LimitChange",
    "Link",
    "Population",
    "Proposal",
    "Quarantine",
    "Reservation",
    "RunHistory",
    "RunHistoryPoint",
    "Signature",
    "SigningKey",
    "Verification",
]


def members(model: type) -> set[str]:
    return {field.name for field in fields(model)} - OWN.get(model.__name__, set())


def schema(model: type) -> set[str]:
    return set(SCHEMAS[RENAMED.get(model.__name__, model.__name__)]["properties"]) - {"next"}


@pytest.mark.parametrize(
    "name", sorted(name for name in epsilon_ledger.__all__ if is_dataclass(getattr(epsilon_ledger, name)))
)
def test_each_member_of_value_is_in_schema(name: str) -> None:
    model = getattr(epsilon_ledger, name)
    if name not in NO_SCHEMA:
        assert members(model) <= schema(model)


@pytest.mark.parametrize("name", WHOLE)
def test_each_member_of_schema_is_in_value(name: str) -> None:
    model: type = getattr(epsilon_ledger, name)
    assert schema(model) <= members(model)


def test_each_rule_of_policy_is_known() -> None:
    assert set(typing.get_type_hints(PolicyRules)) == set(SCHEMAS["PolicyRules"]["properties"])


@pytest.mark.parametrize("terms", [Allocation, Share], ids=lambda terms: terms.__name__)
def test_each_term_of_allocation_is_known(terms: type) -> None:
    assert set(typing.get_type_hints(terms)) == set(SCHEMAS[f"{terms.__name__}Input"]["properties"])


def test_each_term_of_unlock_belongs_to_one_of_its_types() -> None:
    over_time, by_plans = (typing.get_type_hints(terms) for terms in (UnlockOverTime, UnlockByPlans))
    unlock = SCHEMAS["UnlockInput"]["properties"]
    assert set(over_time) | set(by_plans) == set(unlock)
    assert [*typing.get_args(over_time["type"]), *typing.get_args(by_plans["type"])] == unlock["type"]["enum"]
