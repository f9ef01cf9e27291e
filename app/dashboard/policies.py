"""What runs may do: rule by rule what holds, where it comes from, and the form that changes it."""

from typing import Annotated, Final

from fastapi import Query, Request, Response

from app.accounting.events import NeighboringRelation
from app.dashboard.page_context import Visiting, router
from app.dashboard.select_options import account_paths
from app.ledger.errors import InsufficientScopeError, NotFoundError
from app.ledger.permissions import Permission
from app.ledger.policies import LEAVES
from app.service.queries.effective_policy import read_ruled
from app.service.queries.overview import read_change_token

WORDS: Final = {
    "max_epsilon": "Largest epsilon of a run",
    "max_delta": "Largest delta of a run, and of any limit",
    "require_delta_below_inverse_size": "The population's size is known, and delta below 1/size",
    "require_limit": "A run has a limit of its own",
    "require_plan": "A run says what it plans",
    "mechanisms": "Only these mechanisms",
    "neighboring_relations": "Only these neighboring relations",
    "min_noise_multiplier": "Smallest noise multiplier",
    "approval_above_epsilon": "Runs above this epsilon wait for another person",
    "max_unapproved_epsilon_per_budget": "Epsilon of all runs together that nobody has approved",
    "report_roles": "Who reports steps that have happened",
    "approvers_to_raise_limit": "Persons whom it takes to raise a limit",
    "approvers_to_create_population": "Persons whom it takes to open a population",
    "deviations": "Steps that differ from the run's declaration",
}

routes = router()


@routes.get("/policies")
def show_policies(request: Request, visit: Visiting, account: Annotated[str, Query(max_length=2000)] = "") -> Response:
    """The organisation's policy, or that of one account with all that holds there."""
    tag = visit.tag(read_change_token(visit.call))
    unchanged = visit.unchanged(tag)
    if unchanged is not None:
        return unchanged
    fault, account = "", account.strip()
    try:
        ruled = read_ruled(visit.call, account or None)
    except (NotFoundError, InsufficientScopeError) as error:
        ruled, fault = read_ruled(visit.call, None), error.detail
    on_account = bool(account) and not fault
    return visit.show(
        "policies.html",
        tag=tag,
        account=account,
        on_account=on_account,
        fault=fault,
        ruled=ruled,
        words=WORDS,
        may=visit.may(Permission.POLICY_MANAGE) and (on_account or visit.call.principal.scope is None),
        mechanisms=LEAVES,
        relations=list(map(str, NeighboringRelation)),
        paths=account_paths(request, visit),
    )
