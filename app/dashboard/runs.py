"""Page of all runs: search, filters, order, and the same as CSV."""

from typing import Annotated, Final
from urllib.parse import urlencode

from fastapi import Response
from pydantic import Field

from app.api.filters import read_label
from app.api.pagination import decode_cursor, encode_cursor
from app.dashboard.form_fields import Fields, Moment, read_fields
from app.dashboard.formatting import END_REASONS
from app.dashboard.page_context import PageDep, router
from app.ledger.accounts.metadata import MAX_LABELS, MAX_OWNER
from app.ledger.errors import InvalidInputError, NotFoundError, PermissionDeniedError
from app.ledger.pages import Page, PageRequest
from app.ledger.runs.list_filters import MetadataFilter, RunFilter, RunOrder
from app.ledger.runs.run import EndReason, RunStatus
from app.service.queries.overview import read_change_token
from app.service.queries.runs import RunRecord, list_run_rows

routes = router()

PAGE: Final = 50

COLUMNS: Final = {"name": "Run", "created_at": "Registered", "updated_at": "Last change"}
"""Names of the columns that the list can be sorted by."""

Text = Annotated[str | None, Field(max_length=2000)]


class RunFields(Fields):
    """Filters of the page, those of `GET /v1/runs`; labels may be repeated."""

    q: Text = None
    status: RunStatus | None = None
    end_reason: EndReason | None = None
    within: Text = None
    owner: Annotated[str | None, Field(max_length=MAX_OWNER)] = None
    created_after: Moment = None
    created_before: Moment = None
    sort: RunOrder = RunOrder.CREATED_AT_DESCENDING
    archived: bool = False

    def wanted(self, labels: list[str]) -> RunFilter:
        """Convert to the domain.

        Raises:
            InvalidInputError: a label has no key, or there are too many.
        """
        if len(labels) > MAX_LABELS:
            raise InvalidInputError(f"`label`: there are at most {MAX_LABELS}, not {len(labels)}.")
        return RunFilter(
            statuses=() if self.status is None else (self.status,),
            end_reasons=() if self.end_reason is None else (self.end_reason,),
            within=() if self.within is None else (self.within,),
            created_after=self.created_after,
            created_before=self.created_before,
            metadata=MetadataFilter(self.q, self.owner, tuple(map(read_label, labels)), self.archived),
        )

    def query(self, labels: list[str]) -> list[tuple[str, str]]:
        """List the filters as parameters of the page and of the API, without defaults."""
        set_fields = self.model_dump(mode="json", exclude_defaults=True)
        return [*((name, str(value)) for name, value in set_fields.items()), *(("label", each) for each in labels)]


@routes.get("/runs")
def show_runs(page: PageDep) -> Response:
    """Show the runs that match, 50 at once."""
    page.check_etag(page.minute, read_change_token(page.context))
    labels = page.repeated("label")
    fields, faults = read_fields(RunFields, page.query)
    wanted = fields or RunFields()
    found: Page[RunRecord] = Page((), None)
    if not faults:
        try:
            place = PageRequest(PAGE, decode_cursor(page.query.get("after")))
            found = list_run_rows(page.context, wanted.wanted(labels), wanted.sort, place)
        except (NotFoundError, PermissionDeniedError) as error:
            faults = {"within": error.detail}
        except InvalidInputError as error:
            faults = {"label" if labels else "sort": error.detail}
    query = wanted.query(labels)
    return page.render(
        "runs.html",
        values=page.query,
        faults=faults,
        found=found.items,
        labels=[(each, _address([pair for pair in query if pair != ("label", each)])) for each in labels],
        filtered=[pair for pair in query if pair[0] != "sort"],
        statuses=list(RunStatus),
        end_reasons=END_REASONS,
        sort=wanted.sort,
        columns=[(name, title, *_sorting(name, wanted.sort, query)) for name, title in COLUMNS.items()],
        with_label=lambda key, value: _address([*query, ("label", f"{key}:{value}")]),
        csv=f"/v1/runs.csv?{urlencode(query)}" if query else "/v1/runs.csv",
        newest=_address(query) if page.query.get("after") else None,
        older=found.next and _address([*query, ("after", encode_cursor(found.next) or "")]),
    )


def _sorting(column: str, sort: RunOrder, query: list[tuple[str, str]]) -> tuple[str, str | None]:
    """Get the link that sorts by a column, and its present direction for `aria-sort`."""
    present = None
    if sort.column == column:
        present = "descending" if sort.descending else "ascending"
    first = column if column == "name" else f"-{column}"
    other = RunOrder(column if sort.descending else f"-{column}") if present else RunOrder(first)
    return _address([*(pair for pair in query if pair[0] != "sort"), ("sort", str(other))]), present


def _address(query: list[tuple[str, str]]) -> str:
    """Build the address of the page with these filters."""
    kept = list(dict.fromkeys(query))
    return f"/runs?{urlencode(kept)}" if kept else "/runs"
