"""Which rows the partial indexes hold, in the words of these indexes.

The values stand in the statements themselves. To take such an index for a parameter, SQLite plans the statement anew
with each value, and PostgreSQL does not take it in a plan that it has made for all values.
"""

from typing import Final

from sqlalchemy import literal_column

from app.persistence.tables import accounts, decisions, deliveries, reservations

NO_RUN: Final = accounts.c.kind != literal_column("'run'")
NOT_ADMITTED: Final = decisions.c.outcome != literal_column("'admitted'")
PENDING: Final = deliveries.c.status == literal_column("'pending'")
ACTIVE: Final = reservations.c.status == literal_column("'active'")
