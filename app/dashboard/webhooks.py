"""Page of webhooks, deliveries, alerts and alert settings."""

from typing import Annotated, Final

from fastapi import Query, Request, Response

from app.api.pagination import decode_cursor, split_page
from app.dashboard.page_context import PageContext, PageDep, router
from app.dashboard.select_options import account_paths
from app.ledger.alerts import AlertType
from app.ledger.errors import InsufficientScopeError, NotFoundError
from app.service.alerts.settings import get_alert_settings, list_alerts
from app.service.queries.account_paths import account_paths_of
from app.service.queries.overview import read_change_token
from app.service.queries.proposal_detail import read_current_limit
from app.service.queries.webhook_status import read_webhooks

SHOWN: Final = 20
ALERTS: Final = 15

WORDS: Final = {
    AlertType.THRESHOLD: "threshold reached",
    AlertType.EXHAUSTED: "budget exhausted",
    AlertType.FORECAST: "limit expected soon",
    AlertType.OVERDRAWN: "run over its limit",
    AlertType.RESERVATION_STALE: "trainer silent",
    AlertType.RESERVATION_FORFEITED: "reservation forfeited",
    AlertType.TEST: "test event",
}

routes = router()


@routes.get("/webhooks")
def show_webhooks(
    request: Request,
    page: PageDep,
    account: Annotated[str, Query(max_length=2000)] = "",
    after: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Show webhooks, the latest alerts, and the alert settings of one account."""
    found = read_webhooks(page.call, after=decode_cursor(after), limit=SHOWN + 1)
    shown, following = split_page(found, SHOWN, lambda each: each.webhook.id)
    alerts = list_alerts(page.call, account=None, kind=None, before=None, limit=ALERTS)
    # Deliveries are no audit entries, so the tag is computed from the content.
    tag = page.etag(page.minute, read_change_token(page.call), shown, alerts)
    unchanged = page.not_modified(tag)
    if unchanged is not None:
        return unchanged
    chosen, fault = _chosen(page, account.strip())
    return page.render(
        "webhooks.html",
        tag=tag,
        webhooks=shown,
        following=following,
        alerts=alerts,
        places=account_paths_of(
            page.call, [*(each.webhook.account_id for each in shown), *(each.account_id for each in alerts)]
        ),
        words=WORDS,
        account=account.strip(),
        chosen=chosen,
        fault=fault,
        paths=account_paths(request, page),
    )


def _chosen(page: PageContext, account: str) -> tuple[object, str]:
    """Find the account whose settings are edited, or an error message."""
    if not account:
        return None, ""
    try:
        now = read_current_limit(page.call, account)
    except (NotFoundError, InsufficientScopeError) as error:
        return None, error.detail
    if now is None:
        return None, "This run has no limit of its own. See the alert settings of the accounts above it."
    return (now.record.account, get_alert_settings(page.call, now.record.account.id)), ""
