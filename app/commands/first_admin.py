"""Commands that set up an organisation and let its first admin in; audited as the command line."""

from datetime import datetime
from typing import Annotated, Final

import typer
from sqlalchemy.exc import SQLAlchemyError

from app.commands.console import Json, Organisation, open_ledger, print_result
from app.configuration.settings import Settings
from app.ledger.errors import LedgerUnavailableError
from app.persistence.database import Database
from app.service.auth.sign_in_links import LIFETIME, SignInLink
from app.service.keys.first_admin import (
    DEFAULT_ORGANISATION,
    FirstStart,
    create_sign_in_link,
    initialise,
    set_up,
)

LINK_PATH: Final = "/sign-in/link"
"""Path of the page that a sign-in link opens. The token follows `#`, so browsers send it to no server or proxy."""

DEFAULT_URL: Final = "http://localhost:8000"

_MINUTES: Final = int(LIFETIME.total_seconds() // 60)
_WILDCARDS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not bound
_NO_ORGANISATION: Final = (
    "There is no organisation yet. Create one and its admin key: epsilon-ledger init --org {organisation}"
)


def init(
    name: Annotated[str, typer.Option("--org", help="Name of the organisation.")] = DEFAULT_ORGANISATION,
    *,
    new_key: Annotated[
        bool, typer.Option("--new-key", metavar="", help="Create a further admin key if the organisation exists.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Create an organisation and its admin key, unless it exists; for scripts."""
    with open_ledger() as db:
        made = initialise(db, name, db.clock.now(), new_key=new_key)
    happened = "was created" if made.created else "exists" if made.key else "exists already; nothing was changed"
    lines = [f"The organisation {name} ({made.organisation_id}) {happened}."]
    if made.key is not None:
        lines += ["Its new admin key, which is shown only now:", f"    {made.key.key}"]
    else:
        lines.append("Create a further admin key: epsilon-ledger init --new-key" + _organisation_option(name))
    key_id, key = (None, None) if made.key is None else (made.key.id, made.key.key)
    facts = {"id": made.organisation_id, "name": name, "created": made.created, "key_id": key_id, "key": key}
    print_result(as_json=as_json, text="\n".join(lines), facts=facts)


def sign_in_link(
    organisation: Organisation,
    url: Annotated[str | None, typer.Option(help=f"Address of the service; default {DEFAULT_URL}.")] = None,
    *,
    as_json: Json = False,
) -> None:
    """Create a one-time link that signs a browser in as an admin; it voids the former link."""
    origin = (url or Settings().public_url or DEFAULT_URL).rstrip("/")
    with open_ledger(migrated=False) as db:
        link = create_sign_in_link(db, organisation, db.clock.now())
    text = f"{link_url(origin, link)}\nIt works once, until {_time(link.expires_at)}."
    print_result(as_json=as_json, text=text, facts=link_facts(organisation, origin, link))


def greet(db: Database, origin: str, settings: Settings) -> tuple[str, dict[str, object]]:
    """Set up an empty ledger as `serve` starts; return what it prints, as text and as facts."""
    if settings.openid is not None or not settings.init_when_empty:
        return "", {}
    try:
        started = set_up(db, db.clock.now())
    except (SQLAlchemyError, LedgerUnavailableError):  # the database stopped answering; it may later
        return "", {}
    if started is None:
        return "", {}
    return _greeting(started, origin), link_facts(started.organisation, origin, started.link)


def no_organisation_hint(settings: Settings) -> str:
    """Describe how to create the first organisation, where the start does not."""
    return f"\n{_NO_ORGANISATION.format(organisation=settings.oidc_organisation or 'NAME')}"


def link_url(origin: str, link: SignInLink) -> str:
    """Build the address that a person opens."""
    return f"{origin}{LINK_PATH}#{link.token}"


def browser_origin(host: str, port: int, public_url: str | None) -> str:
    """Choose the origin under which a browser reaches the service."""
    if public_url is not None:
        return public_url
    if host in _WILDCARDS:
        return f"http://localhost:{port}"
    return http_url(host, port)


def http_url(host: str, port: int) -> str:
    """Build the URL of an address and port."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _greeting(started: FirstStart, origin: str) -> str:
    again = f"epsilon-ledger sign-in-link{_organisation_option(started.organisation, always=True)}"
    if started.link is None:
        return f"\n\nAnother start printed a sign-in link some seconds ago. Create a new one, which voids it: {again}"
    why = "The ledger was empty" if started.created else "Nobody has signed in yet"
    done = f"; the organisation {started.organisation} was created" if started.created else ""
    return (
        f"\n\n{why}{done}. Sign in as its first admin, once, within {_MINUTES} minutes:\n\n"
        f"    {link_url(origin, started.link)}\n\n"
        f"Create an API key for a program:\n\n"
        f"    epsilon-ledger keys create{_organisation_option(started.organisation, always=True)} --role trainer\n"
    )


def link_facts(organisation: str, origin: str, link: SignInLink | None) -> dict[str, object]:
    """Describe a link for `--json`; None: another start has printed one."""
    if link is None:
        return {"organisation": organisation, "sign_in_link": None}
    expires = _time(link.expires_at)
    return {"organisation": organisation, "sign_in_link": {"url": link_url(origin, link), "expires_at": expires}}


def _organisation_option(name: str, *, always: bool = False) -> str:
    if name == DEFAULT_ORGANISATION and not always:
        return ""
    return f" --org {name}" if name.isalnum() else f' --org "{name}"'


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
