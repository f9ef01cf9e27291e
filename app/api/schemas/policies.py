"""Schemas of policies."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field
from typing_extensions import TypeAliasType

from app.api.schemas.common import Body, Delta, Input, Output, Reason, Relation
from app.ledger.settings.policies import LEAVES, Policy, facts_of, policy_of

_SAID: dict[str, Any] = dict.fromkeys(Policy.__dataclass_fields__) | {
    "require_delta_below_inverse_size": False,
    "require_limit": False,
}


Epsilon = Annotated[float, Field(gt=0, le=10_000)]
if TYPE_CHECKING:
    MechanismName: TypeAlias = str
else:
    MechanismName = TypeAliasType("MechanismName", Literal[LEAVES])
ReportRole = TypeAliasType("ReportRole", Literal["trainer", "admin"])
RequirePlan = TypeAliasType("RequirePlan", Literal["declare", "stay"])
DeviationHandling = TypeAliasType("DeviationHandling", Literal["flag", "refuse"])


_Rules = Annotated[dict[str, Any], BeforeValidator(facts_of)]
_EffectiveRules = Annotated[dict[str, Any], BeforeValidator(lambda policy: _SAID | facts_of(policy))]


class PolicyRules(Input):
    """Rules for runs; an omitted rule is not restricted by this policy."""

    max_epsilon: Epsilon | None = Field(
        default=None,
        description="Maximum epsilon of a run: of its own limit, else of its plan, else of the limit above it.",
    )
    max_delta: Delta | None = Field(default=None, description="Maximum delta of runs and limits.")
    require_delta_below_inverse_size: bool = Field(
        default=False, description="Require the population's size, and every delta below 1/size."
    )
    require_limit: bool = Field(default=False, description="Require a limit for every run.")
    require_plan: RequirePlan | None = Field(
        default=None,
        description="`declare`: every run has a `plan` or `planned` events. `stay`: besides, a step that would end the "
        "plan of an account that it charges is refused.",
    )
    mechanisms: list[MechanismName] | None = Field(
        default=None,
        min_length=1,
        max_length=20,
        description="Allowed mechanisms, also inside samples, compositions and schedules.",
    )
    neighboring_relations: list[Relation] | None = Field(
        default=None, min_length=1, max_length=3, description="Allowed neighboring relations."
    )
    min_noise_multiplier: Annotated[float, Field(ge=1e-3, le=1e6)] | None = Field(
        default=None, description="Minimum noise multiplier, also of nested mechanisms."
    )
    approval_above_epsilon: Epsilon | None = Field(
        default=None, description="A run with a larger epsilon needs approval before its first step."
    )
    max_unapproved_epsilon_per_budget: Epsilon | None = Field(
        default=None,
        description="Maximum epsilon of all unapproved runs together, under this account or under each population; "
        "a run beyond it needs approval before its first step.",
    )
    report_roles: list[ReportRole] | None = Field(
        default=None,
        min_length=1,
        max_length=2,
        description="Roles that may report released steps (mode `report`), besides admins.",
    )
    approvers_to_raise_limit: Annotated[int, Field(ge=1, le=2)] | None = Field(
        default=None,
        description="Number of persons to raise a limit; 2 by default. The policy of an account can only require 2.",
    )
    approvers_to_create_population: Annotated[int, Field(ge=1, le=2)] | None = Field(
        default=None,
        description="Number of persons to create a population, 1 by default; in the organisation's policy only.",
    )
    deviations: DeviationHandling | None = Field(
        default=None, description="Handling of steps that deviate from their run's declaration; `flag` by default."
    )

    def domain(self) -> Policy:
        """Convert to the domain."""
        return policy_of(self.model_dump(exclude_none=True))


class ReplacePolicy(Body):
    """A complete new policy and its reason."""

    policy: PolicyRules
    reason: Reason


class PolicyWarning(Output):
    """A rule without effect, or with less than it seems."""

    rule: str = Field(description="The field of the policy.")
    requires: str | None = Field(description="The rule that it needs; null: a stricter one applies above.")
    detail: str = Field(description="How it can be bypassed.")


class AccountPolicy(Output):
    """A policy; its ETag does not depend on the policies above."""

    account: str | None = Field(validation_alias="account_id", description="Null: the organisation's policy.")
    path: str = Field(description="Of the account, or `organisation`.")
    policy: _Rules = Field(validation_alias="value", description="The rules of this policy.")
    effective: _EffectiveRules = Field(description="The strictest rules of this policy and of all above it.")
    revision: int = Field(description="Number of changes of this policy.")
    warnings: list[PolicyWarning] = Field(description="Rules of this policy with less effect than it seems.")
