"""Data frames of rows, where pandas is installed."""

import types
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any

if typing.TYPE_CHECKING:
    import pandas as pd


def data_frame(rows: Iterable[object], shape: type) -> "pd.DataFrame":
    """Build a data frame of dataclasses: a row each, and a column for each field.

    Args:
        rows: of one class.
        shape: their class. Fields of a nested one become columns such as `limit.epsilon`, also where it is None.

    Returns:
        The frame. Timestamps have a column type of their own, in UTC; sequences and events stay as they are.

    Raises:
        ImportError: pandas is not installed.
    """
    try:
        import pandas as pd  # noqa: PLC0415 - optional, and slow to import
    except ImportError:
        raise ImportError('A data frame needs pandas: pip install "epsilon-ledger-client[pandas]".') from None
    kept = list(rows)
    columns = {}
    for name, hint, read in _columns(shape):
        values = [read(row) for row in kept]
        columns[name] = pd.to_datetime(values, utc=True) if hint is datetime else values
    return pd.DataFrame(columns)


def _columns(shape: type) -> Iterator[tuple[str, Any, Callable[[object], object]]]:
    """Yield the name, the type without None, and the reader of every column."""
    hints = typing.get_type_hints(shape)
    for name in (each.name for each in sorted(fields(shape), key=lambda each: each.kw_only is True)):
        kind = _without_none(hints[name])
        if is_dataclass(kind):
            for inner, inner_hint, read in _columns(typing.cast("type", kind)):
                yield f"{name}.{inner}", inner_hint, _nested(name, read)
        else:
            yield name, kind, attrgetter(name)


def _without_none(hint: Any) -> Any:  # noqa: ANN401 - a type hint can be anything
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    known = [option for option in options if option is not types.NoneType]
    return known[0] if len(known) == 1 else hint


def _nested(name: str, read: Callable[[object], object]) -> Callable[[object], object]:
    def reader(row: object) -> object:
        value = getattr(row, name)
        return None if value is None else read(value)

    return reader
