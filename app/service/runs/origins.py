"""Look up what a run is declared to start from."""

from collections import Counter

from sqlalchemy import Connection

from app.ledger.accounts.account import AccountKind
from app.ledger.errors import InvalidInputError, NotFoundError
from app.ledger.runs.origins import ModelOrigin, Origins, RunOrigin, origin_models, origin_runs
from app.persistence.repositories import accounts, locks
from app.service.auth.request_context import RequestContext


def resolve_origins(tx: Connection, context: RequestContext, named: Origins | None) -> Origins | None:
    """Replace the references to runs by their ids; None: nothing was declared.

    Only runs that exist are found, and a declaration never changes: a lineage has no cycles.

    Raises:
        NotFoundError: the organisation, or the caller's scope in it, has no such run.
        InvalidInputError: several runs have the path, or an origin is given twice.
    """
    if named is None:
        return None
    found = tuple(
        each if isinstance(each, ModelOrigin) else RunOrigin(_run_id(tx, context, each.run)) for each in named
    )
    given = Counter([*origin_runs(found), *(each.sha256 for each in origin_models(found))])
    twice = [each for each, count in given.items() if count > 1]
    if twice:
        raise InvalidInputError(f"`starts_from` has {twice[0]} twice. Give each run and each outside model once.")
    return found


def _run_id(tx: Connection, context: RequestContext, reference: str) -> str:
    """Find a run by its id, or by its path if no other run in the caller's scope has the same."""
    record = accounts.find(tx, context.organisation_id, reference)
    if record is None:
        candidates = accounts.runs_at(tx, context.organisation_id, reference)
    else:
        candidates = [reference] if record.account.kind is AccountKind.RUN else []
    scope = context.principal.scope
    paths = locks.paths(tx, context.organisation_id, candidates)
    seen = [each for each in candidates if scope is None or scope in paths[each]]
    if not seen:
        raise NotFoundError(
            f"`starts_from` names the run {reference!r}, and there is none in your organisation that you may see. "
            "Give the id or the path of a run, or the `name` and `sha256` of a model from outside."
        )
    if len(seen) > 1:
        raise InvalidInputError(
            f"`starts_from` names {reference!r}, and {len(seen)} runs have this path: {', '.join(seen)}. Give the id."
        )
    return seen[0]
