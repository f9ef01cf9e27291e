"""Set up an organisation with its first admin, from the command line or on the first start."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from app.ledger.audit import AuditAction, AuditFilter
from app.ledger.names import check_name
from app.ledger.pages import PageRequest
from app.ledger.permissions import KeyRecord, Role
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import api_keys as stored
from app.persistence.repositories import audit, organisations
from app.service.auth.authentication import CLI_ACTOR, add_organisation
from app.service.auth.request_context import RequestContext, cli_context, find_cli_context
from app.service.auth.sign_in_links import SignInLink, create_link
from app.service.auth.use_cases import use_case
from app.service.ids import new_id
from app.service.keys.api_keys import IssuedKey, KeyTerms, add_key

DEFAULT_ORGANISATION: Final = "default"
"""Name of the organisation that the first start creates."""

FIRST_ADMIN: Final = "first admin"
"""Name of the admin key that `init` prints, and of the key as which sign-in links sign in. Unless `init` has printed
it, nobody knows the secret; rotating the key gives one."""

RECENT: Final = timedelta(seconds=30)
"""Age up to which a start leaves the link of another start valid: several replicas begin at once."""


@dataclass(frozen=True, slots=True)
class FirstStart:
    """What a start on an empty database, or on one where nobody has signed in yet, has set up.

    Args:
        organisation: name of the organisation.
        created: whether this start has created it.
        link: the link to print; None: another start has printed one some seconds ago.
    """

    organisation: str
    created: bool
    link: SignInLink | None


def set_up(db: Database, now: datetime) -> FirstStart | None:
    """Create the first organisation, its admin and a sign-in link if the ledger is empty.

    As long as nobody has signed in and no other key exists, each start makes a new link. Starts at the same time make
    one organisation and one valid link.

    Args:
        db: the ledger's database.
        now: the time of its clock.

    Returns:
        What is to be printed; None: the ledger is set up already.

    Raises:
        SQLAlchemyError: the database does not answer.
    """

    def work(tx: Connection) -> FirstStart | None:
        organisations.lock_names(tx)
        ids = organisations.organisation_ids(tx)
        if not ids:
            context = _add_organisation(tx, db, DEFAULT_ORGANISATION, now)
            return FirstStart(DEFAULT_ORGANISATION, created=True, link=_link.write(tx, context))
        waiting = _unused_organisation(tx, ids)
        if waiting is None:
            return None
        former = stored.sign_in_link_of(tx, waiting)
        recent = former is not None and timedelta() <= now - former.created_at < RECENT
        link = None if recent else _link.write(tx, cli_context(db, waiting, now))
        return FirstStart(organisations.organisation_name(tx, waiting), created=False, link=link)

    with db.read(ALL_TENANTS) as look:  # a service in use is not locked at each start
        ids = organisations.organisation_ids(look)
        if ids and _unused_organisation(look, ids) is None:
            return None
    return db.transact(ALL_TENANTS, work)


@dataclass(frozen=True, slots=True)
class Initialised:
    """An organisation that exists now; whether it was created, and the new admin key, if any."""

    organisation_id: str
    created: bool
    key: IssuedKey | None


def initialise(db: Database, name: str, now: datetime, *, new_key: bool = False) -> Initialised:
    """Create an organisation and its admin key, unless it exists.

    Args:
        db: the ledger's database.
        name: of the organisation.
        now: the time of the database's clock.
        new_key: whether an existing organisation gets a further admin key.

    Raises:
        InvalidInputError: the name is no name.
    """
    check_name(name)
    terms = KeyTerms(Role.ADMIN, FIRST_ADMIN)

    def work(tx: Connection) -> Initialised:
        organisations.lock_names(tx)
        found = organisations.find_organisation(tx, name)
        if found is not None:
            key = add_key(tx, cli_context(db, found, now), terms) if new_key else None
            return Initialised(found, created=False, key=key)
        context = _add_organisation(tx, db, name, now)
        return Initialised(context.organisation_id, created=True, key=add_key(tx, context, terms))

    return db.transact(ALL_TENANTS, work)


def create_sign_in_link(db: Database, organisation: str, now: datetime) -> SignInLink:
    """Create a link that signs in as the first admin of an organisation, by id or name.

    Raises:
        NotFoundError: there is no such organisation.
    """
    return _link(find_cli_context(db, organisation, now))


def _add_organisation(tx: Connection, db: Database, name: str, now: datetime) -> RequestContext:
    organisation_id = new_id("org", now)
    add_organisation(tx, organisation_id, name, now)
    return cli_context(db, organisation_id, now)


@use_case()
def _link(tx: Connection, context: RequestContext) -> SignInLink:
    """Create a link for the organisation's first admin, whose key is created if there is no valid one."""
    named = stored.keys_named(tx, context.organisation_id, FIRST_ADMIN)
    usable = (key for key in named if _is_first_admin(key, context.now))
    key = next(usable, None) or add_key(tx, context, KeyTerms(Role.ADMIN, FIRST_ADMIN)).record
    return create_link(tx, context, key.id)


def _is_first_admin(key: KeyRecord, now: datetime) -> bool:
    ours = key.created_by == CLI_ACTOR.id and key.role == Role.ADMIN and key.scope is None
    return ours and key.invalid_reason(now) is None


def _unused_organisation(tx: Connection, ids: Collection[str]) -> str | None:
    """Find the organisation of a first start of which the link was never used, and which has no other key.

    Nor may the key be in use: `init` prints it to scripts, which never sign in.
    """
    if len(ids) > 1:
        return None
    [organisation_id] = ids
    link = stored.sign_in_link_of(tx, organisation_id)
    keys = stored.page(tx, organisation_id, None, PageRequest(2)).items
    if link is None or [(key.id, key.last_used_at) for key in keys] != [(link.key_id, None)]:
        return None
    signed_in = AuditFilter(action=AuditAction.SESSION_CREATED)
    return None if audit.list_entries(tx, organisation_id, signed_in, PageRequest(1)).items else organisation_id
