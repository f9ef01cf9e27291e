"""Policies on the wire."""

from dataclasses import asdict
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field

from app.api.schemas.common import Body, Delta, Input, Output, Reason, Relation
from app.api.schemas.examples import EXAMPLE_BUDGET_ID
from app.ledger.policies import Policy, facts_of, policy_of
from app.service.governance.policies import PolicyRecord

_WHY = "The board of 12 November: DP-SGD only, and a plan for every run."
_POLICY: dict[str, Any] = {
    "max_epsilon": 2.0,
    "require_plan": True,
    "mechanisms": ["gaussian"],
    "min_noise_multiplier": 0.8,
    "approval_above_epsilon": 1.0,
}
_SAID: dict[str, Any] = dict.fromkeys(Policy.__dataclass_fields__) | {
    "require_delta_below_inverse_size": False,
    "require_limit": False,
}

_WARNING: dict[str, Any] = {
    "rule": "approval_above_epsilon",
    "requires": "require_limit",
    "detail": "approval_above_epsilon can be bypassed: without `require_limit` a run is measured by what it plans, "
    "and nothing holds it to that: it may go on as far as its budget allows.",
}

_DEFAULTS: dict[str, Any] = {
    "max_delta": 1e-6,
    "approvers_to_raise_limit": 2,
    "approvers_to_create_population": 1,
    "deviations": "flag",
}

Epsilon = Annotated[float, Field(gt=0, le=10_000)]
Mechanism = Annotated[
    Literal[
        "adaptive_clipping",
        "discrete_gaussian",
        "epsilon_delta",
        "exponential",
        "gaussian",
        "laplace",
        "randomized_response",
        "tree_aggregation",
        "zcdp",
    ],
    Field(),
]
Reporter = Annotated[Literal["trainer", "admin"], Field()]


class PolicyRules(Input):
    """What runs may do; what is left out is not said here."""

    model_config = ConfigDict(json_schema_extra={"examples": [_POLICY]})

    max_epsilon: Epsilon | None = Field(
        default=None,
        description="The largest epsilon of a run: of its own limit, else of its plan, else of the limit above it.",
    )
    max_delta: Delta | None = Field(default=None, description="The largest delta of a run, and of any limit.")
    require_delta_below_inverse_size: bool = Field(
        default=False, description="The population's size must be known, and every delta be below 1/size."
    )
    require_limit: bool = Field(default=False, description="A run needs a limit of its own.")
    require_plan: bool = Field(default=False, description="A run needs a `plan`, or a `planned` workload.")
    mechanisms: list[Mechanism] | None = Field(
        default=None,
        min_length=1,
        max_length=20,
        description="The only mechanisms that are allowed, also inside samples, compositions and schedules.",
    )
    neighboring_relations: list[Relation] | None = Field(
        default=None, min_length=1, max_length=3, description="The only neighboring relations that are allowed."
    )
    min_noise_multiplier: Annotated[float, Field(ge=1e-3, le=1e6)] | None = Field(
        default=None, description="The smallest noise multiplier of every mechanism that has one, also inside others."
    )
    approval_above_epsilon: Epsilon | None = Field(
        default=None, description="A run of a larger epsilon takes no steps before another person approves it."
    )
    max_unapproved_epsilon_per_budget: Epsilon | None = Field(
        default=None,
        description="What runs that no second person has approved may have together, under this account or under each "
        "population; a run that would pass it takes no steps before another person approves it.",
    )
    report_roles: list[Reporter] | None = Field(
        default=None,
        min_length=1,
        max_length=2,
        description='Who may tell of steps that have happened ("report"); an admin always may.',
    )
    approvers_to_raise_limit: Annotated[int, Field(ge=1, le=2)] | None = Field(
        default=None,
        description="How many persons it takes to raise a limit; 2 unless the organisation's policy says 1.",
    )
    approvers_to_create_population: Annotated[int, Field(ge=1, le=2)] | None = Field(
        default=None,
        description="How many persons it takes to open a population, 1 unless said otherwise; of the organisation's "
        "policy only.",
    )
    deviations: Literal["flag", "refuse"] | None = Field(
        default=None, description="What becomes of steps that differ from what their run has declared; else `flag`."
    )

    def domain(self) -> Policy:
        """The policy as the ledger knows it."""
        said = self.model_dump(exclude_none=True)
        return policy_of(said)


class ReplacePolicy(Body):
    """Another policy, the whole of it, and why."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"policy": _POLICY, "reason": _WHY}]})

    policy: PolicyRules
    reason: Reason


class PolicyWarning(Output):
    """A rule that has no effect, or less than it seems to have."""

    model_config = ConfigDict(json_schema_extra={"examples": [_WARNING]})

    rule: str = Field(description="The field of the policy.")
    requires: str | None = Field(description="The rule without which it does less; null: a stricter one holds above.")
    detail: str = Field(description="What passes it, and why.")


class AccountPolicy(Output):
    """A policy; its ETag changes with it, and not with the policies above it."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "account": EXAMPLE_BUDGET_ID,
                    "path": "mimic/icu-team",
                    "policy": _POLICY,
                    "effective": _SAID | _POLICY | _DEFAULTS,
                    "revision": 1,
                    "warnings": [_WARNING],
                }
            ]
        }
    )

    account: str | None = Field(description="Null for the organisation's own.")
    path: str = Field(description="Of the account, or `organisation`.")
    policy: dict[str, Any] = Field(description="What was said here.")
    effective: dict[str, Any] = Field(description="What holds here: the strictest of this and of all above it.")
    revision: int = Field(description="Counts the changes of this policy.")
    warnings: list[PolicyWarning] = Field(description="Rules said here that do less than they seem to do.")

    @classmethod
    def of(cls, record: PolicyRecord, *, account: bool) -> Self:
        """A policy as it is read."""
        return cls(
            account=record.subject if account else None,
            path=record.path,
            policy=facts_of(record.policy),
            effective=_SAID | facts_of(record.effective),
            revision=record.revision,
            warnings=[PolicyWarning(**asdict(each)) for each in record.warnings],
        )
