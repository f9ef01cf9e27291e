"""The client has the API's schemas and both clients the same methods: values with all members, under the same names."""

import inspect
import math
import typing
from collections.abc import Callable
from dataclasses import fields, is_dataclass

import pytest

import epsilon_ledger
from app.accounting.events import event_from_dict, event_to_dict
from epsilon_ledger import (
    Allocation,
    AsyncLedgerClient,
    AsyncRun,
    Budget,
    Event,
    LedgerClient,
    PolicyRules,
    Run,
    RunState,
    Share,
    UnlockByReservations,
    UnlockOverTime,
    decay,
    epsilon_delta,
    gaussian,
    permute_and_flip,
    randomized_response,
)
from tests.sdk.test_operations import DOCUMENT

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
    *("ParallelComposition", "Problem", "PlanUsage", "LatestLimitChange", "Trial"),
    *("Alternative", "RaisedLimit", "UnavailableAlternative"),
}
WHOLE = [
    *("AccountAllocation", "AccountQueue", "AccountShare", "QueueEntry", "Shortage", "Waiting", "AccountHistory"),
    *("AccountLimit", "AccountPolicy", "Alert", "AlertSettings", "ApiKey", "ArchivedAccount", "AuditEvent"),
    *("AccountBlockSchedule", "AvailableShare", "BlockSchedule", "Budget", "LimitReached", "ChildShare"),
    *("CreatedApiKey", "Decision", "Delivery", "Discrepancy", "Experiment", "Forecast", "LimitChange", "Link"),
    *("Population", "Proposal", "Quarantine", "Reservation", "RunHistory", "RunHistoryPoint", "Signature"),
    *("SigningKey", "Verification"),
]


def members(model: type) -> set[str]:
    return {field.name for field in fields(model)} - OWN.get(model.__name__, set())


def schema(model: type) -> set[str]:
    return set(SCHEMAS[RENAMED.get(model.__name__, model.__name__)]["properties"]) - {"next"}


def test_members_of_values_are_those_of_schemas() -> None:
    for name in epsilon_ledger.__all__:
        model = getattr(epsilon_ledger, name)
        if is_dataclass(model) and name not in NO_SCHEMA:
            assert isinstance(model, type)
            assert members(model) <= schema(model), name
            assert name not in WHOLE or schema(model) <= members(model), name
    assert set(WHOLE) <= set(epsilon_ledger.__all__)


def test_terms_are_those_of_schemas() -> None:
    for terms, name in ((PolicyRules, "PolicyRules"), (Allocation, "AllocationInput"), (Share, "ShareInput")):
        assert set(typing.get_type_hints(terms)) == set(SCHEMAS[name]["properties"])
    over_time, by_reservations = (typing.get_type_hints(terms) for terms in (UnlockOverTime, UnlockByReservations))
    unlock = SCHEMAS["UnlockInput"]["properties"]
    assert set(over_time) | set(by_reservations) == set(unlock)
    assert [*typing.get_args(over_time["type"]), *typing.get_args(by_reservations["type"])] == unlock["type"]["enum"]


def methods(kind: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(method)
        for base in reversed(kind.__mro__[:-1])
        for name, method in vars(base).items()
        if callable(method) and not name.startswith("_")
    }


@pytest.mark.parametrize(("blocking", "awaited"), [(LedgerClient, AsyncLedgerClient), (Run, AsyncRun)])
def test_both_clients_have_same_methods_with_same_arguments(blocking: type, awaited: type) -> None:
    one, other = methods(blocking), methods(awaited)
    assert one.keys() == other.keys()
    assert len(one) > 10
    for name, signature in one.items():
        if name not in {"track", "charge_epoch", "track_epoch"}:  # they take what is awaited, too
            assert list(signature.parameters.values()) == list(other[name].parameters.values())
    for kind, found in ((blocking, one), (awaited, other)):
        for name, signature in found.items():
            assert next(iter(signature.parameters)) == "self", name
            assert signature.return_annotation is not inspect.Signature.empty, name
            assert inspect.getdoc(getattr(kind, name)), name
    assert inspect.signature(LedgerClient.create_budget).return_annotation is Budget
    assert typing.get_type_hints(Run.refresh)["return"] is RunState


@pytest.mark.parametrize(
    ("describe", "inside", "outside"),
    [
        (gaussian, (1e-3, 1e6), (9.9e-4, 1e6 + 0.5)),
        (lambda value: randomized_response(value, 4), (1e-9, 1.0), (0.0, 1.1)),
        (permute_and_flip, (1e-9, 1e4), (0.0, 10_001.0)),
        (epsilon_delta, (0.0, 1e-9, 1e4), (-1e-9, 10_001.0)),
        (lambda value: decay("time", value, gaussian(1.0), steps=2, first_step=3), (0.0, 1.0), (-0.5, math.inf)),
    ],
)
def test_event_is_described_up_to_the_ends_that_the_service_takes(
    describe: Callable[[float], Event], inside: tuple[float, ...], outside: tuple[float, ...]
) -> None:
    assert all(event_to_dict(event_from_dict(describe(value))) == describe(value) for value in inside)
    for value in outside:
        with pytest.raises(ValueError, match="must be in"):
            describe(value)


def test_first_step_of_a_decay_is_sent() -> None:
    assert decay("time", 0.1, gaussian(1.0), steps=2, first_step=3).get("first_step") == 3
