"""From use cases without a network to methods of clients and runs: the same words, blocking or awaited."""

import inspect
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, get_args

from epsilon_ledger._running.dialogue import RunDialogue
from epsilon_ledger._wire.requests import Call, Talk

P = ParamSpec("P")
T = TypeVar("T")


class Carrier(Protocol):
    """Whoever can carry a use case to the ledger and wait for its result."""

    def _carry(self, talk: Talk[T]) -> T: ...


class AsyncCarrier(Protocol):
    """The same, to be awaited."""

    def _carry(self, talk: Talk[T]) -> Awaitable[T]: ...


class RunCarrier(Carrier, Protocol):
    """A run."""

    _dialogue: RunDialogue


class AsyncRunCarrier(AsyncCarrier, Protocol):
    """A run whose methods are awaited."""

    _dialogue: RunDialogue


def asked(call: Callable[P, Call[T]]) -> Callable[Concatenate[Carrier, P], T]:
    """Make a method of a client out of a function that prepares a request.

    Args:
        call: its docstring becomes the method's.

    Returns:
        The method.
    """

    @wraps(call)
    def method(self: Carrier, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._carry(call(*args, **kwargs).talk())

    return signed(method, call)


def asked_async(call: Callable[P, Call[T]]) -> Callable[Concatenate[AsyncCarrier, P], Awaitable[T]]:
    """The same, to be awaited."""

    @wraps(call)
    def method(self: AsyncCarrier, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        return self._carry(call(*args, **kwargs).talk())

    return signed(method, call)


def carried(talk: Callable[Concatenate[RunDialogue, P], Talk[T]]) -> Callable[Concatenate[RunCarrier, P], T]:
    """Make a method of a run out of a use case.

    Args:
        talk: a method of `RunDialogue`; its docstring becomes the method's.

    Returns:
        The method.
    """

    @wraps(talk)
    def method(self: RunCarrier, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._carry(talk(self._dialogue, *args, **kwargs))

    return signed(method, talk)


def carried_async(
    talk: Callable[Concatenate[RunDialogue, P], Talk[T]],
) -> Callable[Concatenate[AsyncRunCarrier, P], Awaitable[T]]:
    """The same, to be awaited."""

    @wraps(talk)
    def method(self: AsyncRunCarrier, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        return self._carry(talk(self._dialogue, *args, **kwargs))

    return signed(method, talk)


M = TypeVar("M", bound=Callable[..., Any])


def signed(method: M, original: Callable[..., Any], result: Any = None) -> M:  # noqa: ANN401 - a type
    """Let `help` and editors show the arguments of the original, after `self`, and its result.

    Args:
        method: what is called.
        original: whose arguments it takes.
        result: what it returns; None: what the original prepares.

    Returns:
        The method.
    """
    shown = inspect.signature(original)
    named = [parameter for name, parameter in shown.parameters.items() if name != "self"]
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    # A Call[T], or a Generator[Request, Reply, T].
    result = result or get_args(shown.return_annotation)[-1]
    method.__signature__ = shown.replace(parameters=[itself, *named], return_annotation=result)  # type: ignore[attr-defined]
    method.__annotations__ = method.__annotations__ | {"return": result}
    return method
