"""Look up the paths of accounts."""

from collections.abc import Iterable, Mapping

from app.persistence.repositories import account_paths
from app.service.auth.request_context import RequestContext


def account_paths_of(call: RequestContext, account_ids: Iterable[str | None]) -> Mapping[str, str]:
    """Get the paths of existing accounts by id, also outside the caller's scope."""
    wanted = {each for each in account_ids if each is not None}
    if not wanted:
        return {}
    with call.db.read(call.organisation_id) as tx:
        return account_paths.paths_of(tx, call.organisation_id, sorted(wanted))
