"""Page of the audit log and of its integrity."""

from typing import Annotated, Final
from urllib.parse import urlencode

from fastapi import Request, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from app.api.pagination import decode_position, split_page
from app.api.routers.audit import verified
from app.api.session_cookies import require_own_page
from app.dashboard.audit_messages import SENTENCES, alike, describe_event, ids_in
from app.dashboard.decisions import PAGE, Moment, Word
from app.dashboard.forms import Fields, read_fields
from app.dashboard.page_context import PART_HEADER, PageContext, PageDep, router
from app.ledger.audit import AuditFilter, StoredAuditEntry
from app.ledger.errors import InvalidInputError
from app.ledger.permissions import Permission
from app.service.audit.chain_status import read_health
from app.service.audit.queries import name_accounts, read_audit_entries
from app.service.queries.overview import read_change_token
from app.service.verification.result_cache import Verifications

routes = router()

ACTIONS: Final = sorted({*SENTENCES, *(f"{action.partition('.')[0]}.*" for action in SENTENCES)})
"""Known actions and, before them, their kinds such as "run.*"."""


class AuditFields(Fields):
    """Filters of the page, those of `GET /v1/audit-events`."""

    action: Word = None
    actor: Word = None
    subject: Annotated[str | None, Field(max_length=2000)] = None
    since: Moment = None
    until: Moment = None

    def wanted(self) -> AuditFilter:
        """Convert to the service's filter."""
        return AuditFilter(self.action, self.actor, self.subject, self.since, self.until)


@routes.get("/audit")
async def show_audit(request: Request, page: PageDep, verify: bool = False) -> Response:  # noqa: FBT001, FBT002 - a field
    """Show audit entries, with `verify` after verifying the ledger; a script's poll never verifies."""
    now = verify and PART_HEADER not in request.headers
    if now:
        require_own_page(request)
        await verified(request, page.call)
    return await run_in_threadpool(_shown, request, page, now)


def _shown(request: Request, page: PageContext, verified_now: bool) -> Response:  # noqa: FBT001 - as said
    page.call.require_permission(Permission.AUDIT_READ)
    known: Verifications = request.app.state.verifications
    whole = page.call.principal.scope is None
    last = known.last(page.call.organisation_id) if whole else None
    tag = page.etag(page.minute, last and last.at, verified_now, read_change_token(page.call))
    unchanged = page.not_modified(tag)
    if unchanged is not None:
        return unchanged
    given = dict(request.query_params)
    fields, faults = read_fields(AuditFields, given)
    after = given.get("after", "")
    found: list[StoredAuditEntry] = []
    try:
        if fields is not None:
            place = decode_position(after, -1) if after else None
            found = read_audit_entries(page.call, fields.wanted(), after=place, limit=PAGE + 1, newest_first=True)
    except InvalidInputError as error:
        faults = {"until": error.detail}
    shown, following = split_page(found, PAGE, lambda kept: str(kept.entry.position))
    paths = name_accounts(page.call, ids_in(shown))
    filters = {name: text for name, text in given.items() if name in AuditFields.model_fields and text.strip()}
    return page.render(
        "audit.html",
        tag=tag,
        health=read_health(page.call) if whole else None,
        last=last,
        verified_now=verified_now,
        may_verify=whole and page.has_permission(Permission.LEDGER_VERIFY),
        values=filters,
        faults=faults,
        found=[describe_event(kept, paths) for kept in shown],
        actions=ACTIONS,
        unknown=fields is not None and fields.action is not None and not alike(fields.action),
        older=following and f"/audit?{urlencode(filters | {'after': following})}",
        newest=f"/audit?{urlencode(filters)}" if after else None,
    )
