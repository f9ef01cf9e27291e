"""Schemas of policies, whose rules are derived from their declarations."""

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, get_args, get_origin, get_type_hints

from pydantic import BeforeValidator, Field, create_model
from typing_extensions import TypeAliasType

from app.api.schemas.common import Body, Input, Output, Reason
from app.ledger.settings.policies import facts_of, policy_of
from app.ledger.settings.policy_rules import RULES, Policy, Rule

_KINDS: Final = get_type_hints(Policy)
_SAID: Final[dict[str, Any]] = {name: False if kind is bool else None for name, kind in _KINDS.items()}

_Rules = Annotated[dict[str, Any], BeforeValidator(facts_of)]
_EffectiveRules = Annotated[dict[str, Any], BeforeValidator(lambda policy: _SAID | facts_of(policy))]


class _PolicyRules(Input):
    """Rules for runs; an omitted rule is not restricted by this policy."""

    def domain(self) -> Policy:
        """Convert to the domain."""
        return policy_of(self.model_dump(exclude_none=True))


def _member(name: str, rule: Rule) -> tuple[Any, Any]:
    """Make the member of a rule: a flag, a number in its bounds, a choice, or a list of choices."""
    kind: Any = next(iter(get_args(_KINDS[name])), _KINDS[name])
    if kind is bool:
        return bool, Field(default=False, description=rule.text)
    if get_origin(kind) is not frozenset:
        bounds: dict[str, Any] = dict(rule.bounds) or {"strict": False}
        value: Any = Annotated[kind, Field(**bounds)]
        return value | None, Field(default=None, description=rule.text)
    item: Any = Annotated[get_args(kind)[0], Field(strict=False)]
    if rule.choices_name:
        item = TypeAliasType(rule.choices_name, Literal[*map(str, rule.choices)])  # type: ignore[misc] # its name is data
    most = len(rule.choices)
    return list[item] | None, Field(default=None, min_length=1, max_length=most, description=rule.text)


if TYPE_CHECKING:
    PolicyRules: TypeAlias = _PolicyRules
else:
    PolicyRules = create_model(
        "PolicyRules",
        __base__=_PolicyRules,
        __module__=__name__,
        __doc__=_PolicyRules.__doc__,
        **{name: _member(name, rule) for name, rule in RULES.items()},
    )


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
