"""Page of all runs: search, filters, order, and the same as CSV."""

from typing import Final

from fastapi import Response

from app.api.routers.runs import RUNS
from app.dashboard.formatting import END_REASONS
from app.dashboard.page_context import PageDep, router
from app.dashboard.searches import SearchForm
from app.service.queries.overview import read_change_token
from app.service.queries.runs import list_run_rows

routes = router()

FORM: Final = SearchForm("/runs", RUNS)


@routes.get("/runs")
def show_runs(page: PageDep) -> Response:
    """Show the runs that match."""
    page.check_etag(page.minute, read_change_token(page.context))
    return page.render("runs.html", search=FORM.read(page, list_run_rows), end_reasons=END_REASONS)
