"""Commands for organisations, their quarantines and their API keys; audited as the command line."""

from collections.abc import Iterator
from datetime import datetime
from itertools import chain
from typing import Annotated, Final

import typer

from app.commands.console import (
    Json,
    Organisation,
    Reason,
    open_ledger,
    open_organisation,
    print_result,
    require_reason,
)
from app.ledger.errors import NotFoundError
from app.ledger.pages import read_pages
from app.ledger.permissions import KeyRecord, Role
from app.ledger.times import parse_time
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import api_keys as stored
from app.service.auth import authentication
from app.service.auth.request_context import RequestContext, cli_context
from app.service.governance import persons, proposals, quarantines
from app.service.keys import api_keys
from app.service.keys.api_keys import KeyTerms

PAGE: Final = 500

_KEY_TIMES: Final = ("created_at", "expires_at", "revoked_at", "last_used_at")
_LIFT_HINT: Final = (
    "Two persons lift it when verification finds nothing any more: epsilon-ledger quarantine lift ACCOUNT"
)


def create_organisation(
    name: Annotated[str, typer.Argument(help="Unique, up to 100 characters.")],
    *,
    as_json: Json = False,
) -> None:
    """Create an organisation and print its id."""
    with open_ledger() as db:
        organisation_id = authentication.create_organisation(db, name, db.clock.now())
    print_result(as_json=as_json, text=organisation_id, facts={"id": organisation_id, "name": name})


def list_quarantined(organisation: Organisation, *, as_json: Json = False) -> None:
    """List an organisation's quarantined accounts and the reasons."""
    with open_organisation(organisation) as context:
        found = quarantines.list_quarantined(context)
    text = "\n".join([*found.values(), _LIFT_HINT]) if found else "No account is quarantined."
    print_result(as_json=as_json, text=text, facts={"quarantined": dict(found)})


def lift_quarantine(
    account: Annotated[str, typer.Argument(metavar="ACCOUNT", help="Id or path, such as mimic/icu-team.")],
    organisation: Organisation,
    reason: Reason,
    *,
    as_json: Json = False,
) -> None:
    """Approve the end of an account's quarantine, or propose it.

    Approval verifies the organisation first and fails while a discrepancy remains. The command line counts as one
    person: another person approves its proposals.
    """
    require_reason(reason)
    with open_organisation(organisation) as context:
        waiting = quarantines.find_open(context, account)
        if waiting is None:
            proposal = quarantines.propose_lift(context, account, reason)
        else:
            proposal = proposals.approve(context, waiting.id, reason)
    facts = {"proposal": proposal.id, "account": proposal.account_id, "status": str(proposal.status)}
    proposed = f"Proposed as {proposal.id}. Another person approves it, on the page Approvals or with their key."
    print_result(as_json=as_json, text="The quarantine is lifted." if waiting else proposed, facts=facts)


def _timestamp(text: str) -> datetime:
    """Parse a timestamp as the API does."""
    try:
        return parse_time(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _role(text: str) -> Role:
    """Parse a role; typer's own message has a prefix of pydantic's."""
    try:
        return Role(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no role; there are: {', '.join(Role)}.") from None


def create_key(
    organisation: Organisation,
    role: Annotated[Role, typer.Option(parser=_role, metavar="|".join(Role), help="Role of the key.")],
    name: Annotated[str | None, typer.Option(help="Name for display.")] = None,
    scope: Annotated[
        str | None, typer.Option(help="Restrict the key to this account, by id or path, and everything under it.")
    ] = None,
    expires: Annotated[
        datetime | None,
        typer.Option(parser=_timestamp, metavar="TIMESTAMP", help="Expiry time, such as 2027-01-01T00:00:00Z."),
    ] = None,
    *,
    single_use: Annotated[
        bool,
        typer.Option("--single-use", metavar="", help="For one run of a trainer, in the scope and until the expiry."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Create an API key and print it once."""
    del as_json  # a key is printed as JSON either way, so that it can be piped
    terms = KeyTerms(role, name, scope, expires, single_use)
    with open_ledger() as db:
        issued = api_keys.create_key(db, organisation, terms, db.clock.now())
    asked = {"name": name, "scope": issued.record.scope, "expires_at": _format_time(issued.record.expires_at)}
    given = {fact: value for fact, value in asked.items() if value is not None}
    print_result(as_json=True, text="", facts={"id": issued.id, "key": issued.key, "role": str(issued.role), **given})


def list_keys(organisation: Organisation, *, as_json: Json = False) -> None:
    """List an organisation's API keys, newest first, including revoked and expired ones, without secrets."""
    with open_organisation(organisation) as context:
        found = list(_all_keys(context))
    text = "\n".join(_line(key, context.now) for key in found) or "No keys."
    print_result(as_json=as_json, text=text, facts={"items": [_key_fields(key) for key in found]})


def revoke_key(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The key's id: its part before the dot.")],
    reason: Reason,
    *,
    include_successors: Annotated[
        bool,
        typer.Option(
            "--include-successors",
            metavar="",
            help="Revoke also the keys that it was rotated into, for example by a thief.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Revoke an API key; every replica rejects it within a second."""
    require_reason(reason)
    with open_ledger(migrated=False) as db:
        context = _context_of_key(db, key_id)
        key = api_keys.revoke_key(context, key_id, reason, include_successors=include_successors)
    print_result(as_json=as_json, text=f"{key.id} was {_describe_state(key, context.now)}.", facts=_key_fields(key))


def remove_person(
    person: Annotated[str, typer.Argument(metavar="PERSON", help="As the audit log names them, such as oidc:9f3c.")],
    organisation: Organisation,
    reason: Reason,
    *,
    revoke_keys: Annotated[
        bool, typer.Option("--revoke-keys", metavar="", help="Revoke also the keys that come from the person.")
    ] = False,
    as_json: Json = False,
) -> None:
    """End a person's sessions, and name the keys from the person that still work.

    Remove the person at the identity provider first: until then they sign in again. Their tokens work until these
    expire. A key comes from the person if the person issued it, or one of their keys did, or it was rotated from one.
    """
    require_reason(reason)
    with open_organisation(organisation) as context:
        removed = persons.remove_person(context, person, reason, revoke_keys=revoke_keys)
    what = "revoked with" if revoke_keys else "that still work, of"
    lines = [f"{removed.sessions} sessions ended, {len(removed.keys)} keys {what} {person}."]
    lines += [_line(key, context.now) for key in removed.keys]
    if removed.keys and not revoke_keys:
        lines.append("Revoke them by --revoke-keys, or one by one: epsilon-ledger keys revoke ID")
    facts = {"sessions_ended": removed.sessions, "keys": [_key_fields(key) for key in removed.keys]}
    print_result(as_json=as_json, text="\n".join(lines), facts=facts)


def _all_keys(context: RequestContext) -> Iterator[KeyRecord]:
    return chain.from_iterable(read_pages(lambda page: api_keys.list_keys(context, page), PAGE))


def _context_of_key(db: Database, key_id: str) -> RequestContext:
    """Build the command line's context for the organisation that owns a key."""
    with db.read(ALL_TENANTS) as tx:
        found = stored.find(tx, key_id)
    if found is None:
        raise NotFoundError(f"There is no key {key_id.partition('.')[0]!r}; `epsilon-ledger keys list` lists them.")
    return cli_context(db, found.organisation_id, db.clock.now())


def _line(key: KeyRecord, now: datetime) -> str:
    return f"{key.id}  {key.role:15}  {_describe_state(key, now):32}  {key.name or ''}  {key.scope or ''}".rstrip()


def _describe_state(key: KeyRecord, now: datetime) -> str:
    defect = key.invalid_reason(now)
    if defect is None:
        return f"expires {_format_time(key.expires_at)}" if key.expires_at else "active"
    return (
        f"revoked {_format_time(key.revoked_at)}" if defect == "revoked" else f"expired {_format_time(key.expires_at)}"
    )


def _key_fields(key: KeyRecord) -> dict[str, object]:
    """Format a key as the API does."""
    described = {name: getattr(key, name) for name in ("id", "name", "role", "scope", "created_by", "single_use")}
    return described | {name: _format_time(getattr(key, name)) for name in _KEY_TIMES}


def _format_time(timestamp: datetime | None) -> str | None:
    return None if timestamp is None else timestamp.isoformat().replace("+00:00", "Z")
