"""The paths of accounts that are stored by their ids."""

from collections.abc import Iterable, Mapping

from app.persistence.repositories import account_paths
from app.service.auth.request_context import RequestContext


def read_paths(call: RequestContext, account_ids: Iterable[str | None]) -> Mapping[str, str]:
    """Read the paths of those of some accounts that exist, whether they are in the caller's reach or not.

    Args:
        call: who may know of these accounts already, by what names them.
        account_ids: of accounts of any kind; None among them names none.
    """
    wanted = {each for each in account_ids if each is not None}
    if not wanted:
        return {}
    with call.db.read(call.organisation_id) as tx:
        return account_paths.paths_of(tx, call.organisation_id, sorted(wanted))
