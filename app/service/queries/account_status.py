"""Epsilons, burn rates, metadata and waiting reservations of the accounts that a page shows."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from sqlalchemy import Connection

from app.ledger.scheduling.account_status import AccountStatus
from app.persistence.repositories import account_metadata, waiting
from app.persistence.repositories.usage_history import Reading
from app.service.accounts.damaged_rows import read_tolerating_damage
from app.service.accounts.epsilons import read_epsilons
from app.service.alerts.forecasts import base_readings, extrapolate
from app.service.auth.request_context import RequestContext


def with_burn_rate(
    tx: Connection, context: RequestContext, statuses: Sequence[AccountStatus], above: Sequence[AccountStatus] = ()
) -> list[AccountStatus]:
    """Add burn rate and forecast to the accounts that are shown; `above` has those above the first of them."""
    every = {each.id: each for each in (*above, *statuses)}
    created = {key: each.created_at for key, each in every.items() if each.created_at is not None}
    bases = base_readings(tx, context.organisation_id, created, context.now)
    rated = {key: _with_rate(each, bases.get(key), context.now) for key, each in every.items()}
    return [_with_path_forecast(rated[each.id], rated) for each in statuses]


def with_epsilons(tx: Connection, context: RequestContext, statuses: Sequence[AccountStatus]) -> list[AccountStatus]:
    """Add the epsilon of the accounts that are shown, except of damaged ones."""
    wanted = [each.id for each in statuses if each.limit is not None]
    found, _ = read_tolerating_damage(tx, context.organisation_id, wanted, lambda record: record)
    values = read_epsilons(tx, context.organisation_id, [(record, None) for record in found.values()])
    epsilons = dict(zip(found, values, strict=True))
    return [each._replace(epsilon=epsilons.get(each.id)) for each in statuses]


def with_metadata(tx: Connection, context: RequestContext, statuses: Sequence[AccountStatus]) -> list[AccountStatus]:
    """Add what people wrote about the accounts that are shown. It is never cached: it leaves the account as it is."""
    found = account_metadata.find_many(tx, context.organisation_id, [each.id for each in statuses])

    def described(status: AccountStatus) -> AccountStatus:
        about = found.get(status.id)
        if about is None:
            return status
        return status._replace(display_name=about.metadata.display_name, owner=about.metadata.owner)

    return list(map(described, statuses))


def with_waiting_reservations(
    tx: Connection, context: RequestContext, statuses: Sequence[AccountStatus]
) -> list[AccountStatus]:
    """Add how many reservations wait for each of the accounts that are shown."""
    found = waiting.counts(tx, context.organisation_id)
    return [each._replace(waiting=found[each.id]) if each.id in found else each for each in statuses]


def _with_path_forecast(status: AccountStatus, rated: Mapping[str, AccountStatus]) -> AccountStatus:
    """Add when the first limit along the path is reached.

    Accounts from a parallel one upwards are left out: their pace is that of the part that lost most.
    """
    first = at = status
    while (parent := rated.get(at.parent_id or "")) is not None and not parent.parallel:
        at = parent
        if at.empty_at is not None and (first.empty_at is None or at.empty_at < first.empty_at):
            first = at
    return status if first.empty_at is None else status._replace(path_empty_at=first.empty_at, path_empty_by=first.path)


def ancestors(statuses: Iterable[AccountStatus], of: Iterable[str]) -> set[str]:
    """Get the ids of accounts and their ancestors, as far as they are among the statuses."""
    above = {each.id: each.parent_id for each in statuses}
    found: set[str] = set()
    for account_id in of:
        at: str | None = account_id
        while at is not None and at in above and at not in found:
            found.add(at)
            at = above[at]
    return found


def _with_rate(status: AccountStatus, base: Reading | None, now: datetime) -> AccountStatus:
    if status.limit is None:
        return status
    seen = extrapolate(status.used, base, now)
    return status._replace(per_day=seen.forecast.per_day, empty_at=seen.exhaustion_at, rated_at=now)
