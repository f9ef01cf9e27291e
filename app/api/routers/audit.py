"""Audit events and decisions."""

from app.api.lists import ListEndpoint, add_list
from app.api.route import router
from app.api.schemas.audit import AuditEvent, Decision
from app.ledger.audit import AuditFilter
from app.ledger.runs.decisions import DecisionFilter
from app.service.audit import queries

routes = router()

AUDIT_EVENTS = add_list(
    routes,
    ListEndpoint(
        "audit-events",
        AuditFilter,
        queries.read_audit_entries,
        AuditEvent,
        "List the organisation's audit log: changes of accounts, keys and policies, and rejected API keys.\n\nA key "
        "with the scope of an account lists the events of that account and of accounts under it, and of their keys, "
        "proposals and experiments.",
        tag="audit",
        csv=True,
    ),
)

DECISIONS = add_list(
    routes,
    ListEndpoint("decisions", DecisionFilter, queries.read_decisions, Decision, items="step decisions", csv=True),
)
