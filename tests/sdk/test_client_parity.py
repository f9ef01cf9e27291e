"""What the two clients and the two runs show of themselves: the same words, blocking or awaited."""

import inspect
import typing

import pytest

from epsilon_ledger import AsyncLedgerClient, AsyncRun, Budget, LedgerClient, Run, RunState


def methods(of: type) -> dict[str, inspect.Signature]:
    """What people call, with its arguments."""
    return {
        name: inspect.signature(method)
        for kind in reversed(of.__mro__[:-1])
        for name, method in vars(kind).items()
        if callable(method) and not name.startswith("_")
    }


@pytest.mark.parametrize(("blocking", "awaited"), [(LedgerClient, AsyncLedgerClient), (Run, AsyncRun)])
def test_both_have_same_methods_with_same_arguments(blocking: type, awaited: type) -> None:
    one, other = methods(blocking), methods(awaited)
    assert one.keys() == other.keys()
    assert len(one) > 10
    for name, signature in one.items():
        if name not in {"track", "charge_epoch", "track_epoch"}:  # they take what is awaited, too
            assert list(signature.parameters.values()) == list(other[name].parameters.values())


@pytest.mark.parametrize("kind", [LedgerClient, AsyncLedgerClient, Run, AsyncRun])
def test_every_method_says_what_it_takes_and_returns(kind: type) -> None:
    for name, signature in methods(kind).items():
        assert next(iter(signature.parameters)) == "self", name
        assert signature.return_annotation is not inspect.Signature.empty, name
        assert "Talk" not in str(signature.return_annotation), name
        assert inspect.getdoc(getattr(kind, name)), name


def test_help_shows_result_and_not_how_it_is_fetched() -> None:
    assert inspect.signature(LedgerClient.create_budget).return_annotation is Budget
    assert inspect.signature(Run.refresh).return_annotation is RunState
    assert typing.get_type_hints(Run.refresh)["return"] is RunState
