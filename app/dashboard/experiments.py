"""Page of experiments, with the forms that create and charge them."""

from typing import Final

from fastapi import Response

from app.api.routers.experiments import EXPERIMENTS
from app.dashboard.page_context import PageDep, router
from app.dashboard.searches import SearchForm
from app.ledger.permissions import Permission
from app.service.queries.overview import account_titles_of, read_change_token

routes = router()

FORM: Final = SearchForm("/experiments", EXPERIMENTS)


@routes.get("/experiments")
def show_experiments(page: PageDep) -> Response:
    """Show experiments, newest first, and the form that creates one."""
    page.check_etag(read_change_token(page.context))
    search = FORM.read(page, EXPERIMENTS.read)
    return page.render(
        "experiments.html",
        search=search,
        titles=account_titles_of(page.context, [each.account.account.id for each in search.found.items]),
        paths=page.account_paths(),
        creates=page.has_permission(Permission.RUN_MANAGE),
        charges=page.has_permission(Permission.STEP_AUTHORIZE),
    )
