"""Details and audit events of refusals."""

from collections.abc import Mapping
from math import inf
from typing import Any

from app.accounting.orders import PURE
from app.ledger.admission import Refusal
from app.ledger.audit import AuditAction
from app.ledger.limit_changes import LimitChange
from app.service.audit_log import AuditEvent
from app.service.json_numbers import json_finite


def refusal_event(action: AuditAction, subject: str, count: int, binding: str, facts: Mapping[str, Any]) -> AuditEvent:
    """Build the audit event of a refused creation under the account `subject`.

    `count` is the number of refused steps, `facts` the result of `refusal_details`.
    """
    return AuditEvent(action, subject, after={"count": count, "binding_account": binding, **facts})


def refusal_details(refusal: Refusal) -> dict[str, Any]:
    """Build the stored and returned numbers of a refusal.

    The member `rdp` is the deciding comparison, in nats at one Rényi order.
    """
    limit = refusal.binding.limit
    assert limit is not None, "only a limit refuses"
    return {
        **json_finite(epsilon=refusal.epsilon, epsilon_requested=refusal.epsilon_requested),
        "epsilon_limit": limit.epsilon,
        "delta": limit.delta,
        "rdp": json_finite(
            order=inf if refusal.order == PURE else refusal.order,
            spent=refusal.spent,
            held=refusal.held,
            requested=refusal.requested,
            limit=refusal.limit,
        ),
        "delta_requested": refusal.delta_requested,
        "delta_left": refusal.delta_left,
        "max_count_that_fits": refusal.max_count_that_fits,
        "noise_multiplier_that_fits": refusal.noise_multiplier_that_fits,
        "limit_change": None if refusal.limit_change is None else _change_facts(refusal.limit_change),
    }


def _change_facts(change: LimitChange) -> dict[str, Any]:
    return {
        "epsilon_before": change.before.epsilon,
        "delta_before": change.before.delta,
        "changed_at": change.at.isoformat(),
        "actor": change.actor,
    }
