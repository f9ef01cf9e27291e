"""Lists and histories as CSV, with the filters and permissions of their JSON forms."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple
from typing import Annotated, Final

from anyio import to_thread
from fastapi import Query, Request
from fastapi.responses import StreamingResponse

from app.api.csv_responses import cells_of, csv_response, csv_route
from app.api.problems import READ_ERRORS
from app.api.route import ContextDep, router
from app.api.routers.accounts import HISTORIANS
from app.api.schemas.audit import Decision
from app.ledger.accounts.metadata import METADATA_FIELDS
from app.ledger.runs.run import DECLARED
from app.service.json_values import json_number
from app.service.queries import runs
from app.service.queries.account_history import AccountHistoryCache
from app.service.queries.runs import RunRecord

routes = router()

RUN_COLUMNS: Final = (
    *("id", "name", "number", "path", "status", *METADATA_FIELDS),
    *("epsilon", "delta", "used", "steps", *DECLARED, "attempt", "decisions"),
    *("last_decided_at", "ended_at", "end_reason", "created_at", "updated_at", "archived_at"),
)


@csv_route(routes, "/runs/{run_id}/history.csv", "Export the history of a run as CSV", *READ_ERRORS, tag="runs")
def export_run_history(run_id: str, context: ContextDep) -> StreamingResponse:
    """Export every decision on a run, oldest first."""
    pages = runs.read_whole_history(context, run_id)
    rows = ((cells_of(Decision.of(each)) for each in page) for page in pages)
    return csv_response(f"{run_id}-history", tuple(Decision.model_fields), rows)


@csv_route(
    routes,
    "/accounts/{account_id}/history.csv",
    "Export the history of an account as CSV",
    *READ_ERRORS,
    tag="accounts",
)
async def export_account_history(
    account_id: str,
    request: Request,
    context: ContextDep,
    max_points: Annotated[int, Query(ge=2, le=500, description="Maximum number of points.")] = 500,
) -> StreamingResponse:
    """Export the epsilon of a population or a budget over time, with a column for the share of each child."""
    histories: AccountHistoryCache = request.app.state.account_histories
    found = await to_thread.run_sync(histories.read, context, account_id, max_points, limiter=HISTORIANS)
    limit, children = found.account.limit, found.children
    assert limit is not None, "populations and budgets have limits"

    def rows() -> Iterator[Sequence[object]]:
        for place, (at, epsilon, used) in enumerate(zip(found.moments, found.epsilons, found.used, strict=True)):
            shares = (child.shares[place] for child in children)
            yield at, json_number(epsilon), limit.shown_delta, used, *shares

    columns = ("created_at", "epsilon", "delta", "used", *(f"used by {child.path}" for child in children))
    return csv_response(f"{found.account.id}-history", columns, [rows()])


def run_cells(row: RunRecord) -> Sequence[object]:
    """Get the cells of a run, as `RUN_COLUMNS`."""
    run, own, about = row.run, row.own, row.about
    return (
        *(own.account.id, own.account.name, about.number, own.account.path),
        *(str(run.status), *asdict(about.metadata).values()),
        *(json_number(row.epsilon), row.delta, row.used),
        *(run.next_step, *astuple(run.declaration), run.attempt, run.decisions),
        *(
            run.last_decided_at,
            run.ended_at,
            run.end_reason and str(run.end_reason),
            own.created_at,
            own.updated_at,
            about.archived_at,
        ),
    )
