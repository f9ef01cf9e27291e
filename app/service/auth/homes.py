"""Where a token's organisation is kept, and the account that bounds a role."""

from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError

from app.ledger.errors import LedgerUnavailableError
from app.ledger.moves import moving_error
from app.persistence.database import ALL_TENANTS
from app.persistence.repositories import accounts, organisations
from app.service.auth.circuit_breaker import CircuitBreakers


@dataclass(frozen=True, slots=True)
class Home:
    """An organisation and its placement."""

    placement: str
    organisation_id: str


def find_home(breakers: CircuitBreakers, named: object) -> Home | None:
    """Find an organisation by the id or name that a token or a rule has; None: unknown.

    Raises:
        LedgerUnavailableError, SQLAlchemyError: a database that may have it does not answer, or it is being moved.
    """
    # Ids and names are printable, and PostgreSQL refuses NUL.
    if not isinstance(named, str) or not named or not named.isprintable():
        return None
    failure: Exception | None = None
    moving = False
    for placement in breakers.in_order():
        try:
            with breakers[placement].guard() as db, db.read(ALL_TENANTS) as tx:
                organisation_id = organisations.find_organisation(tx, named)
                moving = moving or (organisation_id is None and organisations.is_known(tx, named))
        except (SQLAlchemyError, LedgerUnavailableError) as error:
            failure = error  # that database may have the organisation
            continue
        if organisation_id is not None:
            return Home(placement, organisation_id)
    if failure is not None or moving:
        raise failure or moving_error()
    return None


def find_scope(breakers: CircuitBreakers, home: Home, reference: str) -> str | None:
    """Find the id of an account by id or path; None: there is none."""
    with breakers[home.placement].guard() as db, db.read(home.organisation_id) as tx:
        found = accounts.find(tx, home.organisation_id, reference) or accounts.find_by_path(
            tx, home.organisation_id, reference
        )
    return None if found is None else found.account.id
