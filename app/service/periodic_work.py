"""Periodic work in many organisations: the failure of one, or of its database server, does not stop the others."""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from app.ledger.errors import LedgerError
from app.persistence import citus
from app.persistence.database import ALL_TENANTS, NO_TENANT, Database, error_summary

T = TypeVar("T")

Query = Callable[[Connection, Collection[str] | None], Sequence[T]]
"""A query of due work in some organisations, None: in all of them."""

_logger = logging.getLogger(__name__)


def find_due(db: Database, query: Query[T]) -> list[T]:
    """Find due work in all organisations.

    On Citus, if a worker does not answer: in the organisations of the other workers.

    Raises:
        SQLAlchemyError: the database does not answer.
    """
    try:
        with db.read(ALL_TENANTS) as tx:
            return list(query(tx, None))
    except SQLAlchemyError:
        with db.read(NO_TENANT) as tx:
            distributed = citus.is_distributed(tx)
        if not distributed:
            raise
    with db.read(ALL_TENANTS) as tx:
        workers = citus.organisations_by_worker(tx)
    found: list[T] = []
    for worker, organisation_ids in workers.items():
        try:
            with db.read(ALL_TENANTS) as tx:
                found += query(tx, organisation_ids)
        except SQLAlchemyError as error:
            _logger.warning(
                "The periodic work of the %d organisations on the worker %s waits: %s",
                *(len(organisation_ids), worker, error_summary(error)),
            )
    return found


@contextmanager
def isolated(failure: str, *arguments: object) -> Iterator[None]:
    """Log the failure of one piece of work, which must not stop the others.

    Args:
        failure: the message, with placeholders for the arguments.
        arguments: of the message.
    """
    try:
        yield
    except (LedgerError, SQLAlchemyError) as error:  # repeats every few seconds: log one line
        reason = error.detail if isinstance(error, LedgerError) else error_summary(error)
        _logger.warning(f"{failure}: %s", *arguments, reason)  # noqa: G004 - the message has placeholders
    except Exception:
        _logger.exception(failure, *arguments)
