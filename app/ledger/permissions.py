"""Roles of persons and keys, their permissions, and API keys without their secrets."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final


class Permission(StrEnum):
    """A permission of a role, written like an OAuth scope: the resource, then the action."""

    LEDGER_READ = "ledger:read"
    """Read accounts, runs, decisions, policies and histories."""
    STEP_AUTHORIZE = "steps:authorize"
    """Authorize and preview steps, create reservations and attempts."""
    RUN_MANAGE = "runs:manage"
    """Create, pause, resume and end runs."""
    LIMIT_PROPOSE = "limits:propose"
    """Propose a limit."""
    ACCOUNT_MANAGE = "accounts:manage"
    """Create populations and budgets, and lower a limit."""
    PROPOSAL_APPROVE = "proposals:approve"
    """Approve or reject what another person has proposed."""
    POLICY_MANAGE = "policies:manage"
    """Replace a policy."""
    KEY_MANAGE = "keys:manage"
    """Create, rotate and revoke API keys."""
    AUDIT_READ = "audit:read"
    """Read audit events."""
    LEDGER_VERIFY = "ledger:verify"
    """Verify the ledger, create checkpoints and propose to lift a quarantine."""
    ALERT_MANAGE = "alerts:manage"
    """Manage receivers and alert settings."""


class Role(StrEnum):
    """The role of a key or a person."""

    VIEWER = "viewer"
    TRAINER = "trainer"
    PLANNER = "planner"
    BUDGET_ADMIN = "budget_admin"
    PRIVACY_OFFICER = "privacy_officer"
    AUDITOR = "auditor"
    ADMIN = "admin"


PERMISSIONS: Final[Mapping[Role, frozenset[Permission]]] = {
    Role.VIEWER: frozenset({Permission.LEDGER_READ}),
    Role.TRAINER: frozenset({Permission.LEDGER_READ, Permission.STEP_AUTHORIZE, Permission.RUN_MANAGE}),
    Role.PLANNER: frozenset({Permission.LEDGER_READ, Permission.LIMIT_PROPOSE}),
    Role.BUDGET_ADMIN: frozenset(
        {
            Permission.LEDGER_READ,
            Permission.LIMIT_PROPOSE,
            Permission.ACCOUNT_MANAGE,
            Permission.RUN_MANAGE,
            Permission.KEY_MANAGE,
        }
    ),
    Role.PRIVACY_OFFICER: frozenset(set(Permission) - {Permission.STEP_AUTHORIZE}),
    Role.AUDITOR: frozenset({Permission.LEDGER_READ, Permission.AUDIT_READ, Permission.LEDGER_VERIFY}),
    Role.ADMIN: frozenset(Permission),
}
"""A privacy officer governs and does not train; an admin, who sets an organisation up, may do everything."""

ISSUES: Final[Mapping[Role, frozenset[Role]]] = {
    Role.BUDGET_ADMIN: frozenset({Role.VIEWER, Role.TRAINER, Role.PLANNER}),
    Role.PRIVACY_OFFICER: frozenset(set(Role) - {Role.ADMIN}),
    Role.ADMIN: frozenset(Role),
}
"""Roles of the keys that a role with KEY_MANAGE may issue; only an admin issues keys of admins."""


def holders(needed: Permission) -> list[Role]:
    """List the roles with a permission, in the order of `Role`."""
    return [role for role in Role if needed in PERMISSIONS[role]]


SINGLE_USE_ROLE: Final = Role.TRAINER
"""The role of single-use keys: no other one registers a run and authorizes its steps."""

RUN_PREFIX: Final = "run_"

LAST_ANSWERS: Final = timedelta(minutes=1)
"""Time for which a single-use key outlives its run, so that a lost answer to the end of the run can be repeated."""


def is_for_new_run(scope: str | None, *, single_use: bool) -> bool:
    """Check whether a key is single-use and has not registered its run yet."""
    return single_use and not (scope or "").startswith(RUN_PREFIX)


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A stored key with the sha256 of its secret; the id is unique across organisations.

    It is limited to `scope` and its descendants, if set. A single-use key is for one run: it registers one under its
    scope, which then becomes the run, or its scope is a run from the beginning. `last_used_at` is exact to the minute.
    `token_hash` is the sha256 of the workload's token for which it was exchanged, if that is exchanged once only.
    """

    id: str
    organisation_id: str
    name: str | None
    role: str
    scope: str | None
    secret_hash: bytes
    created_by: str
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
    single_use: bool = False
    token_hash: bytes | None = None

    def invalid_reason(self, now: datetime, run_ended_at: datetime | None = None) -> str | None:
        """Get the reason why a key is invalid, "revoked", "expired" or "used", if it is.

        `run_ended_at` is the end of the run of a single-use key.
        """
        if self.revoked_at is not None:
            return "revoked"
        if self.expires_at is not None and now >= self.expires_at:
            return "expired"
        return "used" if run_ended_at is not None and now >= run_ended_at + LAST_ANSWERS else None
