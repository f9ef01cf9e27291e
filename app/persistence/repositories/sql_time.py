"""Time differences in each database's SQL."""

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, func

from app.persistence.tables.base import UtcDateTime


def seconds(tx: Connection, start: Any, end: Any) -> ColumnElement[Any]:  # noqa: ANN401 - a column or a moment
    """Build the difference in seconds of two columns or aware times; inexact on SQLite."""
    first, last = (
        bindparam(None, each, type_=UtcDateTime()) if isinstance(each, datetime) else each for each in (start, end)
    )
    if tx.dialect.name == "postgresql":
        return func.extract("epoch", last - first)
    return (func.julianday(last) - func.julianday(first)) * 86_400.0
