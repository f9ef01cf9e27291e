"""Limits, policies, proposals and API keys."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypeAlias, TypedDict

from epsilon_ledger._wire.models import Limit, NeighboringRelation

Role: TypeAlias = Literal["viewer", "trainer", "planner", "budget_admin", "privacy_officer", "auditor", "admin"]
ProposalStatus: TypeAlias = Literal["open", "approved", "rejected", "withdrawn", "superseded"]


@dataclass(frozen=True, slots=True)
class AccountLimit:
    """The limit of an account; `revision` counts its changes, `etag` is for `change_limit`."""

    account: str
    path: str
    limit: Limit
    revision: int
    weights_frozen: bool
    etag: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class AttackRisk:
    """Bounds on every attack that tests whether the records of one privacy unit are in the data.

    Args:
        advantage: largest difference of true and false positive rate, 0 to 1.
        true_positive_rate: at one false alarm in a hundred; guessing has 0.01.
        singled_out: how many of 1,000 people the best attack finds at that rate of false alarms.
    """

    advantage: float
    true_positive_rate: float
    singled_out: int


@dataclass(frozen=True, slots=True)
class LimitEquivalents:
    """What the limit of an account implies in other units, and as a risk.

    Args:
        epsilon: at `delta`; infinite if none is proven at it.
        rho: None: none follows.
        mu: None: none follows.
    """

    account: str
    path: str
    limit: Limit
    delta: float
    epsilon: float
    rho: float | None
    mu: float | None
    risk: AttackRisk


class PolicyRules(TypedDict, total=False):
    """Rules for runs, all optional; docs/reference/policy-rules.md explains them."""

    max_epsilon: float | None
    max_delta: float | None
    require_delta_below_inverse_size: bool
    require_limit: bool
    require_plan: Literal["declare", "stay"] | None
    require_starts_from: bool
    mechanisms: list[str] | None
    neighboring_relations: list[NeighboringRelation] | None
    min_noise_multiplier: float | None
    approval_above_epsilon: float | None
    max_unapproved_epsilon_per_budget: float | None
    report_roles: list[Literal["trainer", "admin"]] | None
    approvers_to_raise_limit: int | None
    approvers_to_create_population: int | None
    deviations: Literal["flag", "refuse"] | None


@dataclass(frozen=True, slots=True)
class PolicyWarning:
    """A rule with less effect than it seems, and how it can be bypassed."""

    rule: str
    requires: str | None
    detail: str


@dataclass(frozen=True, slots=True)
class AccountPolicy:
    """The policy of an account, or of the organisation (`account` None).

    `policy` has its rules, `effective` the strictest of these and of all above. `etag` is for `replace_policy`.
    """

    account: str | None
    path: str
    policy: PolicyRules
    effective: PolicyRules
    revision: int
    warnings: tuple[PolicyWarning, ...]
    etag: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change that another person approves or rejects; `account` None: of the organisation itself.

    `proposed` depends on `kind`: a new limit or policy, the limit of a run, a new population, or a lifted quarantine.
    """

    id: str
    kind: str
    account: str | None
    proposed: Mapping[str, object]
    status: str
    reason: str
    proposed_by: str
    proposed_at: datetime
    decided_by: str | None
    decided_at: datetime | None
    decision_reason: str | None


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key without its secret; `scope` None: the whole organisation, `expires_at` None: never.

    A `single_use` key is for one run, which is its scope when it is registered.
    """

    id: str
    name: str | None
    role: str
    scope: str | None
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    single_use: bool


@dataclass(frozen=True, slots=True)
class CreatedApiKey(ApiKey):
    """A new API key; `key` is returned once, and not shown by `repr`."""

    key: str = field(repr=False)
