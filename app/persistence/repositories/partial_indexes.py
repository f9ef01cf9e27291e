"""Conditions of the partial indexes, exactly as declared.

The values are literals: with parameters, SQLite would plan the statement for each value before using such an index, and
PostgreSQL would not use it in a generic plan.
"""

from typing import Final

from sqlalchemy import literal_column

from app.persistence.tables import accounts, decisions, deliveries, reservations

NO_RUN: Final = accounts.c.kind != literal_column("'run'")
ADVANCED: Final = decisions.c.outcome.in_([literal_column("'admitted'"), literal_column("'reported'")])
NOT_ADMITTED: Final = decisions.c.outcome != literal_column("'admitted'")
PENDING: Final = deliveries.c.status == literal_column("'pending'")
ACTIVE: Final = reservations.c.status == literal_column("'active'")
