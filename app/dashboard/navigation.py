"""The pages in the navigation."""

from typing import Final

from app.ledger.permissions import Permission

NAV_ITEMS: Final = (
    ("Overview", "/", Permission.LEDGER_READ),
    ("Runs", "/runs", Permission.LEDGER_READ),
    ("Planner", "/planner", Permission.LEDGER_READ),
    ("Decisions", "/decisions", Permission.LEDGER_READ),
    ("Experiments", "/experiments", Permission.LEDGER_READ),
    ("Audit", "/audit", Permission.AUDIT_READ),
    ("Approvals", "/approvals", Permission.LEDGER_READ),
    ("Policies", "/policies", Permission.LEDGER_READ),
    ("Keys", "/keys", Permission.KEY_MANAGE),
    ("Alerts", "/alerts", Permission.ALERT_MANAGE),
)
"""Name, path and needed permission of each page in the navigation."""
