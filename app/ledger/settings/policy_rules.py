"""The rules of a policy, each declared once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from operator import or_
from typing import Any, Final

from app.accounting.events import NeighboringRelation, NoOp
from app.accounting.events.base import EVENT_TYPES
from app.ledger.errors import InvalidInputError
from app.ledger.permissions import PERMISSIONS, Permission, Role, holders

PERSONS: Final = 2
"""Default number of persons to raise a limit."""

OPENERS: Final = 1
"""Default number of persons to create a population."""

LEAVES: Final = tuple(
    sorted(declared.name for cls, declared in EVENT_TYPES.items() if declared.is_mechanism and cls is not NoOp)
)
"""Mechanisms that a policy may allow: event types that contain no other event, and release something."""


class DeviationHandling(StrEnum):
    """The consequence of steps that differ from their run's declaration."""

    FLAG = "flag"
    REFUSE = "refuse"


class RequirePlan(StrEnum):
    """What a run's plan has to be: declared, or also kept to while its accounts' plans hold."""

    DECLARE = "declare"
    STAY = "stay"


@dataclass(frozen=True, slots=True)
class Policy:
    """Rules for runs; None: no rule. `RULES` describes each.

    Raises:
        InvalidInputError: a mechanism is unknown, or a role never reports.
    """

    max_epsilon: float | None = None
    max_delta: float | None = None
    require_delta_below_inverse_size: bool = False
    require_limit: bool = False
    require_plan: RequirePlan | None = None
    require_starts_from: bool = False
    mechanisms: frozenset[str] | None = None
    neighboring_relations: frozenset[NeighboringRelation] | None = None
    min_noise_multiplier: float | None = None
    approval_above_epsilon: float | None = None
    max_unapproved_epsilon_per_budget: float | None = None
    report_roles: frozenset[Role] | None = None
    approvers_to_raise_limit: int | None = None
    approvers_to_create_population: int | None = None
    deviations: DeviationHandling | None = None

    def __post_init__(self) -> None:
        """Reject unknown names: they would seem to allow something."""
        unknown = (self.mechanisms or frozenset()) - set(LEAVES)
        if unknown:
            raise InvalidInputError(f"{min(unknown)!a} is no mechanism; allow some of {', '.join(LEAVES)}.")
        silent = {role for role in self.report_roles or () if Permission.STEP_AUTHORIZE not in PERMISSIONS[role]}
        if silent:
            able = ", ".join(str(role) for role in holders(Permission.STEP_AUTHORIZE))
            raise InvalidInputError(f"The role {min(silent)} never reports; `report_roles` names some of {able}.")


def _later(one: StrEnum, other: StrEnum) -> StrEnum:
    """Choose the later of two members of an enum, which is the stricter one."""
    return max(one, other, key=list(type(one)).index)


@dataclass(frozen=True, slots=True)
class Rule:
    """The description of a field of a policy; its type is the field's.

    Args:
        label: on pages.
        text: in the API's description.
        stricter: chooses the stricter of two values.
        default: effective value where the rule is missing.
        bounds: of a number, by the names of annotated-types: gt, ge, lt, le.
        choices: values that may be chosen, with their words on pages.
        choices_name: of the type of these values in the API's description, unless it is an enum.
        organisation_only: values that an account's policy cannot have.
    """

    label: str
    text: str
    stricter: Callable[[Any, Any], Any]
    default: Any = None
    bounds: Mapping[str, float] = field(default_factory=dict)
    choices: Mapping[Any, str] = field(default_factory=dict)
    choices_name: str = ""
    organisation_only: tuple[Any, ...] = ()

    @property
    def is_list(self) -> bool:
        """Whether several values may be chosen; fewer are stricter."""
        return self.stricter is frozenset.intersection


_EPSILONS: Final = {"gt": 0, "le": 10_000}

RULES: Final[Mapping[str, Rule]] = {
    "max_epsilon": Rule(
        "Largest epsilon of a run",
        "Maximum epsilon of a run: of its own limit, else of its plan, else of the limit above it.",
        min,
        bounds=_EPSILONS,
    ),
    "max_delta": Rule(
        "Largest delta of a run, and of any limit",
        "Maximum delta of runs and limits.",
        min,
        bounds={"ge": 1e-30, "lt": 0.5},
    ),
    "require_delta_below_inverse_size": Rule(
        "Population size known, and delta below 1/size",
        "Require the population's size, and every delta below 1/size.",
        or_,
    ),
    "require_limit": Rule("Every run has its own limit", "Require a limit for every run.", or_),
    "require_plan": Rule(
        "The plan of a run",
        "`declare`: every run reserves its steps or has `planned` events. `stay`: besides, a step that would end the "
        "plan of an account that it charges is refused.",
        _later,
        choices={RequirePlan.DECLARE: "must be declared", RequirePlan.STAY: "must be declared, and kept to"},
    ),
    "require_starts_from": Rule(
        "Every run declares what it starts from",
        "Require `starts_from` of every run: the runs and outside models that its training starts from, or [].",
        or_,
    ),
    "mechanisms": Rule(
        "Allowed mechanisms",
        "Allowed mechanisms, also inside samples, compositions and schedules.",
        frozenset.intersection,
        choices=dict.fromkeys(LEAVES, ""),
        choices_name="MechanismName",
    ),
    "neighboring_relations": Rule(
        "Allowed neighboring relations",
        "Allowed neighboring relations.",
        frozenset.intersection,
        choices=dict.fromkeys(NeighboringRelation, ""),
    ),
    "min_noise_multiplier": Rule(
        "Smallest noise multiplier",
        "Minimum noise multiplier, also of nested mechanisms.",
        max,
        bounds={"ge": 1e-3, "le": 1e6},
    ),
    "approval_above_epsilon": Rule(
        "Runs above this epsilon need approval",
        "A run with a larger epsilon needs another person's approval before its first step.",
        min,
        bounds=_EPSILONS,
    ),
    "max_unapproved_epsilon_per_budget": Rule(
        "Largest epsilon of all unapproved runs together, per budget or population",
        "Maximum epsilon of all unapproved runs together, under this account or under each population; a run beyond it "
        "needs approval before its first step.",
        min,
        bounds=_EPSILONS,
    ),
    "report_roles": Rule(
        "Roles that may report executed steps",
        "Roles that may report released steps (mode `report`), besides admins.",
        frozenset.intersection,
        choices=dict.fromkeys(holders(Permission.STEP_AUTHORIZE), ""),
        choices_name="ReportRole",
    ),
    "approvers_to_raise_limit": Rule(
        "People needed to raise a limit",
        "Number of persons to raise a limit; 2 by default. The policy of an account can only require 2.",
        max,
        default=1,
        bounds={"ge": 1, "le": 2},
        choices={2: "two", 1: "one"},
        organisation_only=(1,),
    ),
    "approvers_to_create_population": Rule(
        "People needed to create a population",
        "Number of persons to create a population, 1 by default; in the organisation's policy only.",
        max,
        default=OPENERS,
        bounds={"ge": 1, "le": 2},
        choices={2: "two", 1: "one"},
        organisation_only=(1, 2),
    ),
    "deviations": Rule(
        "Steps that differ from the run's declaration",
        "Handling of steps that deviate from their run's declaration; `flag` by default.",
        _later,
        default=DeviationHandling.FLAG,
        choices={DeviationHandling.FLAG: "are flagged", DeviationHandling.REFUSE: "are refused"},
    ),
}
"""Each field of a policy, in their order."""

PERSON_RULES: Final = tuple(name for name, rule in RULES.items() if rule.organisation_only)
"""Rules that only the organisation's policy sets, or loosens."""

DEFAULT_RULES: Final[Mapping[str, Any]] = {name: rule.default for name, rule in RULES.items()} | {
    "approvers_to_raise_limit": PERSONS
}
"""Effective values of the organisation policy's missing rules."""
