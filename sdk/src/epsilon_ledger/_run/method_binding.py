"""Methods of clients and runs, blocking or awaitable, from request flows."""

import inspect
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, get_args

from epsilon_ledger._run.item_iterator import AsyncExecutor, AsyncItemIterator, Executor, ItemIterator
from epsilon_ledger._run.run_protocol import RunProtocol
from epsilon_ledger._wire.requests import Call, Listing, RequestFlow

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M", bound=Callable[..., Any])


class RunExecutor(Executor, Protocol):
    """A run."""

    _protocol: RunProtocol


class AsyncRunExecutor(AsyncExecutor, Protocol):
    """An asynchronous run."""

    _protocol: RunProtocol


def client_method(call: Callable[P, Call[T] | RequestFlow[T]]) -> Callable[Concatenate[Executor, P], T]:
    """Make a client method from a function that prepares a request or a flow; it keeps the docstring."""

    @wraps(call)
    def method(self: Executor, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._execute(_flow(call(*args, **kwargs)))

    return set_signature(method, call)


def async_client_method(
    call: Callable[P, Call[T] | RequestFlow[T]],
) -> Callable[Concatenate[AsyncExecutor, P], Awaitable[T]]:
    """As `client_method`, awaitable."""

    @wraps(call)
    def method(self: AsyncExecutor, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        return self._execute(_flow(call(*args, **kwargs)))

    return set_signature(method, call)


def _flow(call: Call[T] | RequestFlow[T]) -> RequestFlow[T]:
    return call.flow() if isinstance(call, Call) else call


def list_method(listing: Callable[P, Listing[T]]) -> Callable[Concatenate[Executor, P], ItemIterator[T]]:
    """Make a client method that iterates over a list; it keeps the docstring."""

    @wraps(listing)
    def method(self: Executor, /, *args: P.args, **kwargs: P.kwargs) -> ItemIterator[T]:
        return ItemIterator(self, listing(*args, **kwargs))

    return set_signature(method, listing, ItemIterator[_item(listing)])  # type: ignore[misc] # known at run time only


def async_list_method(
    listing: Callable[P, Listing[T]],
) -> Callable[Concatenate[AsyncExecutor, P], AsyncItemIterator[T]]:
    """As `list_method`, for `async for`."""

    @wraps(listing)
    def method(self: AsyncExecutor, /, *args: P.args, **kwargs: P.kwargs) -> AsyncItemIterator[T]:
        return AsyncItemIterator(self, listing(*args, **kwargs))

    return set_signature(method, listing, AsyncItemIterator[_item(listing)])  # type: ignore[misc] # as above


def export_method(listing: Callable[P, Listing[T]]) -> Callable[Concatenate[Executor, P], bytes]:
    """Make a client method that gets all of a list as CSV; it has the list's arguments."""

    def method(self: Executor, /, *args: P.args, **kwargs: P.kwargs) -> bytes:
        return self._execute(listing(*args, **kwargs).csv())

    return _describe_export(method, listing)


def async_export_method(listing: Callable[P, Listing[T]]) -> Callable[Concatenate[AsyncExecutor, P], Awaitable[bytes]]:
    """As `export_method`, awaitable."""

    def method(self: AsyncExecutor, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[bytes]:
        return self._execute(listing(*args, **kwargs).csv())

    return _describe_export(method, listing)


def _describe_export(method: M, listing: Callable[..., Any]) -> M:
    name = listing.__name__
    method.__name__ = method.__qualname__ = name.replace("list_", "export_", 1)
    method.__doc__ = f"""Export what `{name}` lists as CSV.

    Its arguments are those of `{name}`, of which `page_size` has no effect.

    Returns:
        CSV in UTF-8, a row for each item.

    Raises:
        LedgerError: what the list is about does not exist, or no response arrived.
    """
    return set_signature(method, listing, bytes)


def _item(listing: Callable[..., Listing[T]]) -> type[T]:
    item: type[T] = get_args(inspect.signature(listing).return_annotation)[0]
    return item


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
