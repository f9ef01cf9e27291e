"""Distribution of a ledger's tables over the workers of a Citus cluster, by organisation.

Source: https://docs.citusdata.com/en/stable/develop/reference_ddl.html.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, select

from app.ledger.errors import InvalidInputError, LedgerUnavailableError
from app.ledger.ids import BITS, id_of
from app.persistence import postgresql
from app.persistence.database import NO_TENANT, Database
from app.persistence.postgresql import has_citus
from app.persistence.tables import api_keys, metadata
from app.persistence.tables.base import stored_number

REFERENCE_TABLES: Final = frozenset({"api_keys", "sessions", "sign_in_links"})
"""Looked up by an id alone, before the organisation is known: every node has a copy."""

LOST_CONSTRAINTS: Final = ("uq_organisations_name",)
"""Citus enforces none that leaves the organisation out. Creations lock the table, and look for the name instead."""

SESSION_SETTINGS: Final = {"citus.propagate_set_commands": "local", "citus.multi_shard_modify_mode": "sequential"}
"""The tenant of a transaction must reach the workers, or row-level security hides its rows. And a transaction that has
read the rows of all organisations must be able to write keys: it has one connection to each worker."""

TRIED_IDS: Final = 256
"""Random ids among which each worker has one: of 20 workers, one is left out once in 20,000 times."""

NOT_CITUS: Final = (
    "The database is no coordinator of a Citus cluster: a superuser installs the extension in the database on every "
    "node by CREATE EXTENSION citus, and names the nodes on the coordinator by citus_set_coordinator_host and "
    "citus_add_node."
)

_COORDINATOR: Final = (
    "SELECT EXISTS (SELECT FROM pg_dist_local_group WHERE groupid = 0),"
    " EXISTS (SELECT FROM pg_dist_node WHERE groupid = 0 AND isactive),"
    " (SELECT count(*) FROM pg_dist_node WHERE groupid > 0 AND noderole = 'primary' AND isactive AND shouldhaveshards)"
)
_UNREACHABLE: Final = (
    "SELECT nodename || ':' || nodeport, result FROM run_command_on_workers('SELECT 1') WHERE NOT success ORDER BY 1"
)
_NOT_OWNED: Final = (
    "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relname = ANY(%(names)s)"
    " AND NOT pg_has_role(current_user, relowner, 'USAGE') ORDER BY 1"
)
_OWNS_DATABASE: Final = (
    "SELECT pg_has_role(current_user, datdba, 'USAGE'), current_database() FROM pg_database"
    " WHERE datname = current_database()"
)
_DISTRIBUTED: Final = "SELECT logicalrelid::regclass::text FROM pg_dist_partition"
_FOREIGN_KEYS: Final = (
    "SELECT conrelid::regclass::text AS owner, confrelid::regclass::text AS target, conname AS name,"
    " pg_get_constraintdef(oid) AS definition FROM pg_constraint"
    " WHERE contype = 'f' AND connamespace = current_schema()::regnamespace ORDER BY 1, 3"
)
_IS_DISTRIBUTED: Final = (
    "SELECT EXISTS (SELECT FROM pg_dist_partition WHERE logicalrelid = to_regclass('organisations'))"
)
_WORKERS: Final = (
    "SELECT node.nodename || ':' || node.nodeport, asked.id FROM unnest(%(ids)s::bigint[]) AS asked(id)"
    " JOIN pg_dist_placement AS part ON part.shardid = get_shard_id_for_distribution_column('organisations', asked.id)"
    " JOIN pg_dist_node AS node ON node.groupid = part.groupid AND node.noderole = 'primary' ORDER BY 1, 2"
)
_ROOM: Final = "SELECT count(*) FROM organisations, generate_series(1, 10000) WHERE id = %(id)s"
"""On the worker, this many numbers take more than their memory limit: they need its disk."""
_HAS_CONSTRAINT: Final = (
    "SELECT EXISTS (SELECT FROM pg_constraint WHERE connamespace = current_schema()::regnamespace"
    " AND conname = %(name)s)"
)


@dataclass(frozen=True, slots=True)
class Distribution:
    """The result of a distribution.

    Args:
        distributed: tables that were distributed now.
        replicated: tables of which every node got a copy now.
        lost: constraints that were dropped, because Citus has none such.
        workers: active workers that may hold rows.
    """

    distributed: Sequence[str]
    replicated: Sequence[str]
    lost: Sequence[str]
    workers: int


@dataclass(frozen=True, slots=True)
class _ForeignKey:
    owner: str
    target: str
    name: str
    definition: str

    @property
    def is_enforceable(self) -> bool:
        """Whether Citus takes it: a copy on every node cannot refer to rows that are on one."""
        return self.owner not in REFERENCE_TABLES or self.target in REFERENCE_TABLES


def is_distributed(tx: Connection) -> bool:
    """Check whether the ledger of a database is distributed over workers."""
    return has_citus(tx) and bool(tx.exec_driver_sql(_IS_DISTRIBUTED).scalar())


def organisations_by_worker(tx: Connection) -> dict[str, list[str]]:
    """Group the organisations that have an API key by worker, as HOST:PORT, without asking any of these."""
    return _by_worker(tx, list(tx.execute(select(api_keys.c.organisation_id).distinct()).scalars()))


def unused_ids(tx: Connection) -> dict[str, str]:
    """Get the id of no organisation for each worker, as HOST:PORT, that would hold its rows."""
    tried = [id_of(secrets.randbits(BITS)) for _ in range(TRIED_IDS)]
    return {worker: found[0] for worker, found in _by_worker(tx, tried).items()}


def rehearse(tx: Connection, unused: str, patience: float) -> None:
    """Test that the worker of an organisation that does not exist has room on its disk, and lets its rows be changed.

    The organisation's row was added in the transaction; `patience` bounds each lock and statement in seconds.
    """
    limit = f"{int(patience * 1000)}ms"
    tx.exec_driver_sql(f"SET LOCAL statement_timeout = '{limit}'")
    tx.exec_driver_sql("SET LOCAL work_mem = '64kB'")
    asked = {"id": stored_number(unused)}
    tx.exec_driver_sql(_ROOM, asked)
    tx.exec_driver_sql("UPDATE organisations SET name = name WHERE id = %(id)s", asked)


def _by_worker(tx: Connection, organisation_ids: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for worker, number in tx.exec_driver_sql(_WORKERS, {"ids": [stored_number(each) for each in organisation_ids]}):
        found.setdefault(worker, []).append(id_of(number))
    return found


def distribute(db: Database) -> Distribution:
    """Distribute the tables of a ledger with the newest schema, with or without rows, in one transaction.

    Tables that are distributed already stay as they are.

    Raises:
        InvalidInputError: the database is no coordinator, has no worker, is in use, or the role may not do it.
        LedgerUnavailableError: a worker does not answer.
    """
    if db.dialect != "postgresql":
        raise InvalidInputError(NOT_CITUS)
    with db.read(NO_TENANT) as tx:
        workers = _require_cluster(tx)
        _require_owner(tx)
        missing = set(metadata.tables) - set(tx.exec_driver_sql(_DISTRIBUTED).scalars())
        used = bool(missing) and postgresql.is_used_by_others(tx)
    if used:
        raise InvalidInputError(
            "The database is in use. Stop every service and command that is connected to it, and try again."
        )
    _set_up_sessions(db)
    done = db.migrate(_distribute)
    return Distribution(*done, workers)


def _require_cluster(tx: Connection) -> int:
    """Require a coordinator whose workers answer to this role; return their number."""
    if not has_citus(tx):
        raise InvalidInputError(NOT_CITUS)
    is_coordinator, is_registered, workers = tx.exec_driver_sql(_COORDINATOR).one()
    if not is_coordinator:
        raise InvalidInputError("The database is on a worker; give the URL of the coordinator.")
    if not is_registered:
        raise InvalidInputError(
            "The coordinator is not among its nodes, so it would have no copy of the keys: a superuser adds it by "
            "SELECT citus_set_coordinator_host('HOST', PORT)."
        )
    if not workers:
        raise InvalidInputError(
            "The cluster has no active worker: a superuser adds one by SELECT citus_add_node('HOST', PORT)."
        )
    silent = tx.exec_driver_sql(_UNREACHABLE).all()
    if silent:
        named = "; ".join(f"{node}: {str(why).strip()}" for node, why in silent)
        raise LedgerUnavailableError(
            f"Workers do not answer to the service's role, which must exist there and be let in: {named}."
        )
    return int(workers)


def _require_owner(tx: Connection) -> None:
    strange = list(tx.exec_driver_sql(_NOT_OWNED, {"names": sorted(metadata.tables)}).scalars())
    owns, database = tx.exec_driver_sql(_OWNS_DATABASE).one()
    if strange or not owns:
        of = f"the table {strange[0]}" if strange else f"the database {database}"
        raise InvalidInputError(f"The service's role must own the database and all tables, and {of} is another role's.")


def _set_up_sessions(db: Database) -> None:
    """Set what every later session of the database needs on the coordinator."""
    with db.write(NO_TENANT) as tx:
        name = tx.exec_driver_sql("SELECT quote_ident(current_database())").scalar()
        for setting, value in SESSION_SETTINGS.items():
            tx.exec_driver_sql(f"ALTER DATABASE {name} SET {setting} = '{value}'")


def _distribute(tx: Connection) -> tuple[list[str], list[str], list[str]]:
    known = set(tx.exec_driver_sql(_DISTRIBUTED).scalars())
    tables = [table.name for table in metadata.sorted_tables if table.name not in known]
    if not tables:
        return [], [], []
    # One connection to each worker: with several, some would not see what others create.
    tx.exec_driver_sql("SET LOCAL citus.multi_shard_modify_mode = 'sequential'")
    keys = [_ForeignKey(*row) for row in tx.exec_driver_sql(_FOREIGN_KEYS)]
    keys = [key for key in keys if {key.owner, key.target} & set(tables)]
    lost = [name for name in LOST_CONSTRAINTS if tx.exec_driver_sql(_HAS_CONSTRAINT, {"name": name}).scalar()]
    for name in lost:
        tx.exec_driver_sql(f"ALTER TABLE organisations DROP CONSTRAINT {name}")
    for key in keys:
        tx.exec_driver_sql(f"ALTER TABLE {key.owner} DROP CONSTRAINT {key.name}")
    for name in tables:  # rows are copied, which row-level security refuses
        tx.exec_driver_sql(f"ALTER TABLE {name} DISABLE ROW LEVEL SECURITY")
    for name in sorted(tables, key=lambda table: table != "organisations"):
        tx.exec_driver_sql(distribution_of(name))
    for key in keys:
        if key.is_enforceable:
            tx.exec_driver_sql(f"ALTER TABLE {key.owner} ADD CONSTRAINT {key.name} {key.definition}")
    for name in tables:
        tx.exec_driver_sql(f"ALTER TABLE {name} ENABLE ROW LEVEL SECURITY")
    replicated = [name for name in tables if name in REFERENCE_TABLES]
    lost += [key.name for key in keys if not key.is_enforceable]
    return [name for name in tables if name not in REFERENCE_TABLES], replicated, lost


def distribution_of(table: str) -> str:
    """Build the statement that distributes a table."""
    if table in REFERENCE_TABLES:
        return f"SELECT create_reference_table('{table}')"
    if table == "organisations":
        return "SELECT create_distributed_table('organisations', 'id', colocate_with => 'none')"
    return f"SELECT create_distributed_table('{table}', 'organisation_id', colocate_with => 'organisations')"
