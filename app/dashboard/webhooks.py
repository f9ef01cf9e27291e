"""Where alerts go and whether they arrive, what was told last, and of what an account tells."""

from typing import Annotated, Final

from fastapi import Query, Request, Response

from app.api.pagination import decode_cursor, split_page
from app.dashboard.page_context import PageContext, Visiting, router
from app.dashboard.select_options import account_paths
from app.ledger.errors import InsufficientScopeError, NotFoundError
from app.persistence.repositories.alerts import AlertType
from app.service.alerts.settings import get_alert_settings, list_alerts
from app.service.queries.account_paths import read_paths
from app.service.queries.overview import read_change_token
from app.service.queries.proposal_detail import read_limit_now
from app.service.queries.webhook_status import read_webhooks

SHOWN: Final = 20
ALERTS: Final = 15

WORDS: Final = {
    AlertType.THRESHOLD: "a threshold was reached",
    AlertType.EXHAUSTED: "nothing more fits",
    AlertType.FORECAST: "the limit is near at this pace",
    AlertType.OVERDRAWN: "a run is over its limit",
    AlertType.RESERVATION_STALE: "a trainer is silent",
    AlertType.RESERVATION_FORFEITED: "a reservation was forfeited",
    AlertType.TEST: "a test",
}

routes = router()


@routes.get("/webhooks")
def show_webhooks(
    request: Request,
    visit: Visiting,
    account: Annotated[str, Query(max_length=2000)] = "",
    after: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Webhooks with their state, the latest alerts, and the form for the alerts of one account."""
    found = read_webhooks(visit.call, after=decode_cursor(after), limit=SHOWN + 1)
    shown, following = split_page(found, SHOWN, lambda each: each.webhook.id)
    alerts = list_alerts(visit.call, account=None, kind=None, before=None, limit=ALERTS)
    # What is delivered is no act: so the page is compared by its content.
    tag = visit.tag(visit.minute, read_change_token(visit.call), shown, alerts)
    unchanged = visit.unchanged(tag)
    if unchanged is not None:
        return unchanged
    chosen, fault = _chosen(visit, account.strip())
    return visit.show(
        "webhooks.html",
        tag=tag,
        webhooks=shown,
        following=following,
        alerts=alerts,
        places=read_paths(
            visit.call, [*(each.webhook.account_id for each in shown), *(each.account_id for each in alerts)]
        ),
        words=WORDS,
        account=account.strip(),
        chosen=chosen,
        fault=fault,
        paths=account_paths(request, visit),
    )


def _chosen(visit: PageContext, account: str) -> tuple[object, str]:
    """The account whose alerts are to be changed and of what it tells, and what is wrong with it."""
    if not account:
        return None, ""
    try:
        now = read_limit_now(visit.call, account)
    except (NotFoundError, InsufficientScopeError) as error:
        return None, error.detail
    if now is None:
        return None, "This run has no limit of its own: the accounts above it tell."
    return (now.record.account, get_alert_settings(visit.call, now.record.account.id)), ""
