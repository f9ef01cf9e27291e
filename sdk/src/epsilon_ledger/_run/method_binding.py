"""Methods of clients and runs, blocking or awaitable, from request flows."""

import inspect
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, get_args

from epsilon_ledger._run.run_protocol import RunProtocol
from epsilon_ledger._wire.requests import Call, RequestFlow

P = ParamSpec("P")
T = TypeVar("T")


class Executor(Protocol):
    """Executor of request flows."""

    def _execute(self, flow: RequestFlow[T]) -> T: ...


class AsyncExecutor(Protocol):
    """Asynchronous executor of request flows."""

    def _execute(self, flow: RequestFlow[T]) -> Awaitable[T]: ...


class RunExecutor(Executor, Protocol):
    """A run."""

    _protocol: RunProtocol


class AsyncRunExecutor(AsyncExecutor, Protocol):
    """An asynchronous run."""

    _protocol: RunProtocol


def client_method(call: Callable[P, Call[T]]) -> Callable[Concatenate[Executor, P], T]:
    """Make a client method from a function that prepares a request; it keeps the docstring."""

    @wraps(call)
    def method(self: Executor, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._execute(call(*args, **kwargs).flow())

    return set_signature(method, call)


def async_client_method(call: Callable[P, Call[T]]) -> Callable[Concatenate[AsyncExecutor, P], Awaitable[T]]:
    """As `client_method`, awaitable."""

    @wraps(call)
    def method(self: AsyncExecutor, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        return self._execute(call(*args, **kwargs).flow())

    return set_signature(method, call)


def run_method(flow: Callable[Concatenate[RunProtocol, P], RequestFlow[T]]) -> Callable[Concatenate[RunExecutor, P], T]:
    """Make a run method from a flow of `RunProtocol`; it keeps the docstring."""

    @wraps(flow)
    def method(self: RunExecutor, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._execute(flow(self._protocol, *args, **kwargs))

    return set_signature(method, flow)


def async_run_method(
    flow: Callable[Concatenate[RunProtocol, P], RequestFlow[T]],
) -> Callable[Concatenate[AsyncRunExecutor, P], Awaitable[T]]:
    """As `run_method`, awaitable."""

    @wraps(flow)
    def method(self: AsyncRunExecutor, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        return self._execute(flow(self._protocol, *args, **kwargs))

    return set_signature(method, flow)


M = TypeVar("M", bound=Callable[..., Any])


def set_signature(method: M, original: Callable[..., Any], result: Any = None) -> M:  # noqa: ANN401 - a type
    """Set a method's visible signature for `help` and editors.

    Args:
        method: to change and return.
        original: its parameters are shown after `self`.
        result: return annotation; None: the result of the original's flow.
    """
    shown = inspect.signature(original)
    named = [parameter for name, parameter in shown.parameters.items() if name != "self"]
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    # A Call[T], or a Generator[Request, Reply, T].
    result = result or get_args(shown.return_annotation)[-1]
    method.__signature__ = shown.replace(parameters=[itself, *named], return_annotation=result)  # type: ignore[attr-defined]
    method.__annotations__ = method.__annotations__ | {"return": result}
    return method
