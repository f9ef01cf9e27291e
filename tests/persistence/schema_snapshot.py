"""The schema that a database has, to be compared with another one."""

import re
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, inspect

from app.persistence.tables import metadata


def shape_of(tx: Connection) -> dict[str, object]:
    """Columns and constraints of every table, CHECKs included, which `alembic check` does not compare."""
    found = inspect(tx)
    shape: dict[str, object] = {}
    for table in sorted(metadata.tables):
        checks = {
            str(check["name"]): re.sub(r"[\s()]+", "", str(check["sqltext"]))
            for check in found.get_check_constraints(table)
        }
        shape[table] = (
            sorted((column["name"], str(column["type"]), column["nullable"]) for column in found.get_columns(table)),
            sorted(found.get_pk_constraint(table)["constrained_columns"]),
            sorted(
                (
                    str(key["name"]),
                    tuple(key["constrained_columns"]),
                    key["referred_table"],
                    tuple(key["referred_columns"]),
                )
                for key in found.get_foreign_keys(table)
            ),
            sorted((str(key["name"]), tuple(key["column_names"])) for key in found.get_unique_constraints(table)),
            sorted(
                (str(key["name"]), tuple(map(str, key["column_names"])), key["unique"], _condition(key))
                for key in found.get_indexes(table)
            ),
            checks,
        )
    return shape


def _condition(index: Mapping[str, Any]) -> str:
    """The rows that a partial index has."""
    found = [value for name, value in index.get("dialect_options", {}).items() if name.endswith("_where")]
    return re.sub(r"[\s()]+", "", "".join(map(str, found)))
