"""Pages of approvals, policies, keys and receivers, with the forms that change them."""

from typing import Annotated, Final

from fastapi import Query, Response

from app.api.pagination import decode_cursor
from app.dashboard.page_context import PageContext, PageDep, router
from app.ledger.accounts.alerts import AlertFilter, AlertType
from app.ledger.accounts.receivers import ReceiverKind
from app.ledger.errors import NotFoundError, PermissionDeniedError
from app.ledger.pages import PageRequest
from app.ledger.permissions import ISSUES, Permission, Role
from app.ledger.settings.policy_rules import DEFAULT_RULES, RULES
from app.service.alerts.receivers import list_receiver_statuses
from app.service.alerts.settings import get_alert_settings, list_alerts
from app.service.keys.api_keys import SHOWN_AFTER_EXPIRY, list_keys
from app.service.keys.key_expiry import read_latest_expiry
from app.service.queries.governance import (
    CurrentLimit,
    read_current_limit,
    read_decided_proposals,
    read_effective_policy,
    read_open_proposals,
)
from app.service.queries.overview import account_titles_of, read_change_token

DECIDED: Final = 20
KEYS: Final = 50
RECEIVERS: Final = 20
ALERTS: Final = 15
"""Decided proposals, keys, receivers and alerts of a page."""

PURPOSES: Final = {
    Role.VIEWER: "for dashboards: read",
    Role.TRAINER: "for training jobs: register runs and authorize steps",
    Role.PLANNER: "for planning: read and propose limits",
    Role.BUDGET_ADMIN: "for team leads: create budgets, lower limits, issue keys",
    Role.PRIVACY_OFFICER: "for the privacy office: everything except authorizing steps",
    Role.AUDITOR: "for auditors: read and verify",
    Role.ADMIN: "for set-up: everything",
}
"""Purpose of each role."""

Account = Annotated[str, Query(max_length=2000)]
Cursor = Annotated[str, Query(max_length=200)]

routes = router()


@routes.get("/approvals")
def show_approvals(page: PageDep, account: Account = "", after: Cursor = "") -> Response:
    """Show open and decided proposals, and the limit form of one account."""
    page.check_etag(read_change_token(page.context))
    account = account.strip()
    limit, fault = _current_limit(page, account, "the accounts above it")
    waiting = read_open_proposals(page.context)
    decided = read_decided_proposals(page.context, PageRequest(DECIDED, decode_cursor(after)))
    proposals = [each.proposal for each in (*waiting.items, *decided.items)]
    return page.render(
        "approvals.html",
        actors=[actor for each in proposals for actor in (each.proposed_by, each.decided_by)],
        waiting=waiting,
        decided=decided,
        account=account,
        fault=fault,
        limit=limit,
        policy_rules=RULES,
        paths=page.account_paths(),
    )


@routes.get("/policies")
def show_policies(page: PageDep, account: Account = "") -> Response:
    """Show the policy of the organisation or of one account, and the form that changes it."""
    page.check_etag(read_change_token(page.context))
    fault, account = "", account.strip()
    try:
        ruled = read_effective_policy(page.context, account or None)
    except (NotFoundError, PermissionDeniedError) as error:
        ruled, fault = read_effective_policy(page.context, None), error.detail
    on_account = bool(account) and not fault
    return page.render(
        "policies.html",
        account=account,
        on_account=on_account,
        fault=fault,
        ruled=ruled,
        actors=[ruled.waiting.proposed_by if ruled.waiting else None],
        policy_rules=RULES,
        default_rules=DEFAULT_RULES,
        may=page.has_permission(Permission.POLICY_MANAGE) and (on_account or page.context.principal.scope is None),
        paths=page.account_paths(),
    )


@routes.get("/keys")
def show_keys(page: PageDep, after: Cursor = "", *, past: bool = False) -> Response:
    """Show keys, newest first, and the form that creates one; `past` also shows workloads' keys of past jobs."""
    page.check_etag(page.minute, read_change_token(page.context))
    found = list_keys(page.context, PageRequest(KEYS, decode_cursor(after)), with_past_jobs=past)
    lendable = ISSUES[page.context.principal.role]
    return page.render(
        "keys.html",
        found=found,
        past=past,
        latest=read_latest_expiry(page.context),
        days_shown=SHOWN_AFTER_EXPIRY.days,
        actors=[key.created_by for key in found.items],
        scopes=account_titles_of(page.context, [page.context.principal.scope, *(key.scope for key in found.items)]),
        roles=[(role, PURPOSES[role]) for role in Role if role in lendable],
        paths=page.account_paths(),
    )


@routes.get("/alerts")
def show_alerts(page: PageDep, account: Account = "", after: Cursor = "") -> Response:
    """Show receivers, the latest alerts, and the alert settings of one account."""
    found = list_receiver_statuses(page.context, PageRequest(RECEIVERS, decode_cursor(after)))
    alerts = list_alerts(page.context, AlertFilter(), PageRequest(ALERTS)).items
    # Deliveries are no audit entries, so the tag is computed from the content.
    page.check_etag(page.minute, read_change_token(page.context), found, alerts)
    account = account.strip()
    limit, fault = _current_limit(page, account, "the alert settings of the accounts above it")
    chosen = limit and limit.record.account
    return page.render(
        "alerts.html",
        found=found,
        alerts=alerts,
        places=account_titles_of(
            page.context, [*(each.receiver.account_id for each in found.items), *(each.account_id for each in alerts)]
        ),
        words={kind.value: kind.words for kind in AlertType},
        kinds=list(ReceiverKind),
        sends_mail=page.state.receiver_rules.sends_mail,
        account=account,
        chosen=chosen and (chosen, get_alert_settings(page.context, chosen.id)),
        fault=fault,
        paths=page.account_paths(),
    )


def _current_limit(page: PageContext, account: str, instead: str) -> tuple[CurrentLimit | None, str]:
    """Get the limit of the account that a form is about, or an error message."""
    if not account:
        return None, ""
    try:
        found = read_current_limit(page.context, account)
    except (NotFoundError, PermissionDeniedError) as error:
        return None, error.detail
    return found, "" if found else f"This run has no limit of its own. See {instead}."
