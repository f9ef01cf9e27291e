"""Page of experiments, with the forms that create and charge them."""

from typing import Annotated, Final

from fastapi import Query, Response

from app.api.pagination import decode_cursor
from app.dashboard.page_context import PageDep, router
from app.ledger.errors import NotFoundError, PermissionDeniedError
from app.ledger.experiments import ExperimentFilter
from app.ledger.pages import Page, PageRequest
from app.ledger.permissions import Permission
from app.service.experiments import ExperimentRecord, list_experiments
from app.service.queries.overview import account_titles_of, read_change_token

routes = router()

PAGE: Final = 50


@routes.get("/experiments")
def show_experiments(
    page: PageDep,
    account: Annotated[str, Query(max_length=2000)] = "",
    after: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Show experiments, newest first, and the form that creates one."""
    page.check_etag(read_change_token(page.context))
    account, fault = account.strip(), ""
    found: Page[ExperimentRecord] = Page((), None)
    wanted = ExperimentFilter(account or None)
    try:
        found = list_experiments(page.context, wanted, PageRequest(PAGE, decode_cursor(after)))
    except (NotFoundError, PermissionDeniedError) as error:
        fault = error.detail
    return page.render(
        "experiments.html",
        found=found,
        titles=account_titles_of(page.context, [each.account.account.id for each in found.items]),
        account=account,
        fault=fault,
        paths=page.account_paths(),
        creates=page.has_permission(Permission.RUN_MANAGE),
        charges=page.has_permission(Permission.STEP_AUTHORIZE),
    )
