"""Who may do what: the roles of people and keys, and the permissions that they have."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class Permission(StrEnum):
    """Something that not everybody may do.

    READ: accounts, runs, histories. CHARGE: take steps, reserve, open attempts, preview. RUNS: register, pause and end
    runs. PLAN: propose a limit. TREE: open populations and budgets, lower a limit. APPROVE: what
    another one has proposed. POLICY: what runs may do. KEYS: issue and withdraw keys. AUDIT: read what was decided by
    whom. VERIFY: recompute the ledger. WEBHOOKS: where alerts go.
    """

    READ = "read"
    CHARGE = "charge"
    RUNS = "runs"
    PLAN = "plan"
    TREE = "tree"
    APPROVE = "approve"
    POLICY = "policy"
    KEYS = "keys"
    AUDIT = "audit"
    VERIFY = "verify"
    WEBHOOKS = "webhooks"


class Role(StrEnum):
    """What a key, or a person, is for."""

    VIEWER = "viewer"
    TRAINER = "trainer"
    PLANNER = "planner"
    BUDGET_ADMIN = "budget_admin"
    PRIVACY_OFFICER = "privacy_officer"
    AUDITOR = "auditor"
    ADMIN = "admin"


PERMISSIONS: Final[Mapping[Role, frozenset[Permission]]] = {
    Role.VIEWER: frozenset({Permission.READ}),
    Role.TRAINER: frozenset({Permission.READ, Permission.CHARGE, Permission.RUNS}),
    Role.PLANNER: frozenset({Permission.READ, Permission.PLAN}),
    Role.BUDGET_ADMIN: frozenset(
        {Permission.READ, Permission.PLAN, Permission.TREE, Permission.RUNS, Permission.KEYS},
    ),
    Role.PRIVACY_OFFICER: frozenset(set(Permission) - {Permission.CHARGE}),
    Role.AUDITOR: frozenset({Permission.READ, Permission.AUDIT, Permission.VERIFY}),
    Role.ADMIN: frozenset(Permission),
}
"""A privacy officer governs and does not train; an admin, who sets an organisation up, may do everything."""

ISSUES: Final[Mapping[Role, frozenset[Role]]] = {
    Role.BUDGET_ADMIN: frozenset({Role.VIEWER, Role.TRAINER, Role.PLANNER}),
    Role.PRIVACY_OFFICER: frozenset(set(Role) - {Role.ADMIN}),
    Role.ADMIN: frozenset(Role),
}
"""To whom a role with KEYS may issue keys: nobody lends more than is theirs to lend."""


def holders(needed: Permission) -> list[Role]:
    """The roles that have a permission, in the order of `Role`."""
    return [role for role in Role if needed in PERMISSIONS[role]]
