"""What a limit implies in other units, and as a risk that people understand (ADR 0052)."""

from dataclasses import dataclass
from functools import lru_cache

from app.accounting.risk import AttackRisk, Guarantee, attack_risk
from app.accounting.unit_risk import gaussian_risk, zcdp_risk
from app.ledger.errors import NotFoundError
from app.ledger.filter.limits import Limit, Unit
from app.service.accounts.lookup import find_path_of
from app.service.auth.request_context import RequestContext


@dataclass(frozen=True, slots=True)
class LimitEquivalents:
    """What follows from the limit of an account.

    Args:
        account_id: of the account.
        path: of the account.
        limit: of the account.
        delta: at which epsilon holds.
        epsilon: infinite if none is proven at this delta.
        rho: of zCDP; None: none follows.
        mu: of Gaussian DP; None: none follows.
        risk: of the best attack.
    """

    account_id: str
    path: str
    limit: Limit
    delta: float
    epsilon: float
    rho: float | None
    mu: float | None
    risk: AttackRisk


def read_equivalents(context: RequestContext, account: str, delta: float | None) -> LimitEquivalents:
    """Compute what the limit of an account implies at a delta; None: at the one at which its epsilon is shown.

    Raises:
        NotFoundError: a run has no limit of its own.
    """
    with context.read() as tx:
        found = find_path_of(tx, context, account)[-1].account
    limit = found.limit
    if limit is None:
        raise NotFoundError(f"The run {found.id} has no limit of its own.")
    at = limit.shown_delta if delta is None else delta
    return LimitEquivalents(
        found.id, found.path, limit, at, limit.epsilon_at(at), limit.rho, limit.mu, limit_risk(limit)
    )


@lru_cache(maxsize=1024)
def limit_risk(limit: Limit) -> AttackRisk:
    """Bound the success of every attack on what is released within a limit."""
    if limit.unit is Unit.MU:
        return gaussian_risk(limit.value)
    if limit.unit is Unit.RHO:
        return zcdp_risk(limit.value, limit.delta)
    return attack_risk([Guarantee(limit.value, limit.delta)])
