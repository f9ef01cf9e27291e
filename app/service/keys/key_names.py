"""Names of keys, by which people tell apart who did something."""

from sqlalchemy import Connection

from app.ledger.errors import NameTakenError
from app.ledger.names import look_alike
from app.persistence.repositories import api_keys
from app.service.actors import COMMAND_LINE
from app.service.auth.request_context import RequestContext


def require_key_name_free(tx: Connection, context: RequestContext, name: str | None) -> None:
    """Refuse the name of a valid key, or a lookalike: pages and alerts name keys as the actors of what was done.

    Successors of a key have its name, and keys of one workload have one name.
    """
    if name is None:
        return
    for other in (COMMAND_LINE, *api_keys.valid_names(tx, context.organisation_id, context.now)):
        if look_alike(name, other):
            raise NameTakenError(
                f"{name!r} looks like {other!r}, the name of another actor; choose another name.", name=other
            )
