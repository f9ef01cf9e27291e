"""Find the organisation of a token, and the account that bounds a role."""

from app.persistence.database import ALL_TENANTS
from app.persistence.repositories import accounts, organisations
from app.service.auth.circuit_breaker import CircuitBreaker


def find_organisation(breaker: CircuitBreaker, named: object) -> str | None:
    """Find the id of an organisation by the id or name that a token or a rule has; None: unknown.

    Raises:
        LedgerUnavailableError, SQLAlchemyError: the database does not answer.
    """
    # Ids and names are printable, and PostgreSQL refuses NUL.
    if not isinstance(named, str) or not named or not named.isprintable():
        return None
    with breaker.guard() as db, db.read(ALL_TENANTS) as tx:
        return organisations.find_organisation(tx, named)


def find_scope(breaker: CircuitBreaker, organisation_id: str, reference: str) -> str | None:
    """Find the id of an account by id or path; None: there is none."""
    with breaker.guard() as db, db.read(organisation_id) as tx:
        found = accounts.find(tx, organisation_id, reference) or accounts.find_by_path(tx, organisation_id, reference)
    return None if found is None else found.account.id
