"""The alternatives to a refused request; `alternative_search` finds them."""

from dataclasses import dataclass
from enum import StrEnum

from app.ledger.filter.limits import Limit


class AlternativeType(StrEnum):
    """A kind of alternative to a refused request."""

    SAME_NOISE = "same_noise"
    MORE_NOISE = "more_noise"
    HIGHER_LIMIT = "higher_limit"


class UnavailableReason(StrEnum):
    """Why an alternative is not offered."""

    EXHAUSTED = "exhausted"
    """The budget is practically exhausted."""
    NONE_SUFFICES = "none_suffices"
    """No value in the allowed range is enough."""
    SEVERAL_EVENTS = "several_events"
    """The request has several events."""
    NO_NOISE_MULTIPLIER = "no_noise_multiplier"
    """The event has no single noise multiplier, or no formula for another one."""
    POLICY = "policy"
    """A policy of the path forbids it."""
    TOO_EXPENSIVE = "too_expensive"
    """The search would take more work than a request may take."""
    NOT_SEARCHED = "not_searched"
    """Other charges changed the accounts during each search, or too many searches were waiting."""


@dataclass(frozen=True, slots=True)
class RemainingTraining:
    """What a training still needs.

    Args:
        steps: number of steps, with the refused ones.
        declared: whether its run has declared its events, so that a policy may refuse others.
        fixed_limits: ids of accounts whose limit a policy forbids to raise.
    """

    steps: int
    declared: bool = True
    fixed_limits: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RaisedLimit:
    """A higher limit of an account of the path, to be set together with the others of a list."""

    account_id: str
    account_path: str
    limit: Limit


@dataclass(frozen=True, slots=True)
class Alternatives:
    """The alternatives for the rest of a training.

    Args:
        steps: number that the training still needs, with the refused ones.
        same_noise: number of them that fit as they are.
        more_noise: smallest noise multiplier with which all of them fit; None: not offered.
        higher_limit: the limits with which all of them fit as they are; empty: not offered.
        unavailable: why noise or limits are not offered.
    """

    steps: int
    same_noise: int
    more_noise: float | None = None
    higher_limit: tuple[RaisedLimit, ...] = ()
    unavailable: tuple[tuple[AlternativeType, UnavailableReason], ...] = ()

    @property
    def exhausted(self) -> bool:
        """Whether less than 1 % of the steps fit even at ten times the noise."""
        return (AlternativeType.MORE_NOISE, UnavailableReason.EXHAUSTED) in self.unavailable


def unsearched(steps: int, same_noise: int) -> Alternatives:
    """State that the alternatives were not searched, but for the steps that fit as they are."""
    found = (AlternativeType.MORE_NOISE, AlternativeType.HIGHER_LIMIT)
    return Alternatives(steps, same_noise, unavailable=tuple((each, UnavailableReason.NOT_SEARCHED) for each in found))
