"""Page of policies."""

from typing import Annotated, Final

from fastapi import Query, Request, Response

from app.accounting.events import NeighboringRelation
from app.dashboard.page_context import PageDep, router
from app.dashboard.select_options import account_paths
from app.ledger.errors import InsufficientScopeError, NotFoundError
from app.ledger.permissions import Permission
from app.ledger.policies import LEAVES
from app.service.queries.effective_policy import read_effective_policy
from app.service.queries.overview import read_change_token

WORDS: Final = {
    "max_epsilon": "Largest epsilon of a run",
    "max_delta": "Largest delta of a run, and of any limit",
    "require_delta_below_inverse_size": "Population size known, and delta below 1/size",
    "require_limit": "Every run has its own limit",
    "require_plan": "Every run declares a plan",
    "mechanisms": "Allowed mechanisms",
    "neighboring_relations": "Allowed neighboring relations",
    "min_noise_multiplier": "Smallest noise multiplier",
    "approval_above_epsilon": "Runs above this epsilon need approval",
    "max_unapproved_epsilon_per_budget": "Largest epsilon of all unapproved runs together",
    "report_roles": "Roles that may report executed steps",
    "approvers_to_raise_limit": "People needed to raise a limit",
    "approvers_to_create_population": "People needed to create a population",
    "deviations": "Steps that differ from the run's declaration",
}

routes = router()


@routes.get("/policies")
def show_policies(request: Request, page: PageDep, account: Annotated[str, Query(max_length=2000)] = "") -> Response:
    """Show the policy of the organisation or of one account, and the form that changes it."""
    tag = page.etag(read_change_token(page.call))
    unchanged = page.not_modified(tag)
    if unchanged is not None:
        return unchanged
    fault, account = "", account.strip()
    try:
        ruled = read_effective_policy(page.call, account or None)
    except (NotFoundError, InsufficientScopeError) as error:
        ruled, fault = read_effective_policy(page.call, None), error.detail
    on_account = bool(account) and not fault
    return page.render(
        "policies.html",
        tag=tag,
        account=account,
        on_account=on_account,
        fault=fault,
        ruled=ruled,
        words=WORDS,
        may=page.has_permission(Permission.POLICY_MANAGE) and (on_account or page.call.principal.scope is None),
        mechanisms=LEAVES,
        relations=list(map(str, NeighboringRelation)),
        paths=account_paths(request, page),
    )
