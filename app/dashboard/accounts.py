"""Pages of the overview, of a population or a budget, and of a run."""

from typing import Annotated, Final

from anyio import to_thread
from fastapi import Query, Response
from pydantic import Field

from app.accounting.events import MAX_NOISE_MULTIPLIER, MIN_NOISE_MULTIPLIER
from app.api.pagination import decode_cursor
from app.api.routers.accounts import HISTORIANS
from app.charts.builders import account_chart, noise_chart, run_chart, sampling_chart, share_chart, used_chart
from app.dashboard.alternatives import Advice
from app.dashboard.event_descriptions import describe_event
from app.dashboard.form_fields import Fields, read_fields
from app.dashboard.formatting import END_REASONS, RELATIONS, actors_of
from app.dashboard.page_context import PageContext, PageDep, router
from app.ledger.permissions import Permission
from app.ledger.runs.deviations import DeviationKind
from app.ledger.runs.reservations import has_lapsed
from app.service.queries.account_detail import HypotheticalRun, get_account_detail
from app.service.queries.first_steps import read_first_steps
from app.service.queries.lineage import view_lineage
from app.service.queries.overview import read_change_token, read_overview
from app.service.queries.run_detail import RunDetail, get_run_detail, run_change_token

routes = router()

MOST_CHARGED: Final = 3
"""Different events of a run's steps that are described."""

KINDS: Final = {
    DeviationKind.SAMPLER: "how the data are sampled",
    DeviationKind.SAMPLING_PROBABILITY: "sampling probability",
    DeviationKind.MECHANISM: "mechanism",
    DeviationKind.NOISE_MULTIPLIER: "noise multiplier",
    DeviationKind.EVENT: "event",
    DeviationKind.STEPS: "steps",
    DeviationKind.STEPS_PER_HOUR: "steps an hour",
}
"""Labels of deviations."""


class PlanFields(Fields):
    """Fields of the what-if form."""

    steps: int = Field(default=10_000, ge=1, le=1_000_000_000)
    noise: float = Field(default=1.1, ge=MIN_NOISE_MULTIPLIER, le=MAX_NOISE_MULTIPLIER)
    rate: float = Field(default=0.004, gt=0, le=1)


@routes.get("/")
def show_overview(page: PageDep, find: Annotated[str, Query(max_length=200)] = "") -> Response:
    """Show an organisation at a glance."""
    opens = page.has_permission(Permission.ACCOUNT_MANAGE) and page.context.principal.scope is None
    page.check_etag(page.minute, read_change_token(page.context))
    first = read_first_steps(page.context, page.state.account_statuses) if opens and not find else None
    seen = read_overview(page.context, page.state.account_statuses, wanted=find)
    return page.render("overview.html", seen=seen, find=find, opens=opens, relations=RELATIONS, first=first)


@routes.get("/accounts/{account_id}")
async def show_account(
    account_id: str, page: PageDep, after: Annotated[str | None, Query(max_length=200)] = None
) -> Response:
    """Show the spending, the children and a what-if form of an account."""
    return await to_thread.run_sync(_shown, account_id, page, after, limiter=HISTORIANS)


def _shown(account_id: str, page: PageContext, after: str | None) -> Response:
    page.check_etag(page.minute, read_change_token(page.context))
    fields, faults = read_fields(PlanFields, page.query)
    plan = None if fields is None else HypotheticalRun(fields.steps, fields.noise, fields.rate)
    seen = get_account_detail(
        page.context, page.state.account_statuses, page.state.account_histories, account_id, decode_cursor(after), plan
    )
    return page.render(
        "account.html",
        seen=seen,
        describe=describe_event,
        chart=account_chart(seen.history),
        used=used_chart(seen.history, seen.view.record.alert_settings.thresholds),
        shares=share_chart(seen.history),
        signed=page.state.signer is not None,
        fields=fields,
        values=PlanFields().model_dump() | page.query,
        faults=faults,
    )


@routes.get("/runs/{run_id}")
def show_run(run_id: str, page: PageDep) -> Response:
    """Show the spending, refusals, deviations and reservations of a run."""
    page.check_etag(page.minute, run_change_token(page.context, run_id))
    seen = get_run_detail(page.context, run_id)
    return page.render(
        "run.html",
        actors=[
            seen.registered_by,
            *(actor for each in seen.refusals for actor in actors_of(each)),
            *(actor for each in seen.limit_requests for actor in (each.proposed_by, each.decided_by)),
        ],
        seen=seen,
        lineage=view_lineage(page.context, run_id),
        event=None if seen.record.run.event is None else describe_event(seen.record.run.event),
        describe=describe_event,
        chart=run_chart(seen),
        charged=_charged(seen),
        traits=[chart for chart in (noise_chart(seen), sampling_chart(seen)) if chart is not None],
        signed=page.state.signer is not None,
        kinds=KINDS,
        end_reasons=END_REASONS,
        advice=_advice(seen),
        lapsed=lambda reservation: has_lapsed(reservation, page.context.lapsed_by),
    )


def _charged(seen: RunDetail) -> list[str]:
    """Describe the first few events of the latest attempt's steps."""
    latest = (each for each in seen.points if each.admitted and each.attempt == seen.record.run.attempt)
    events = dict.fromkeys(step.event for each in latest for step in each.steps)
    return [describe_event(event) for event in list(events)[:MOST_CHARGED]]


def _advice(seen: RunDetail) -> Advice | None:
    """Get the alternatives to the latest refusal, unless steps were admitted after it."""
    latest, run = next(iter(seen.refusals), None), seen.record.run
    if latest is None or latest.first_step != run.next_step:
        return None
    found = Advice.of(latest, seen.limits_changed)
    accounts = [each.account for each in seen.record.path]
    return found and found.requestable(accounts, seen.limits_waiting, ended=run.end_reason is not None)
