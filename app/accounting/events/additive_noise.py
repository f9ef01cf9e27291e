"""Events that add noise to a sum with clipped contributions."""

from dataclasses import dataclass
from typing import Literal

from app.accounting.errors import InvalidEventError
from app.accounting.events.base import (
    MAX_COUNT,
    NOISE_MULTIPLIERS,
    DpEvent,
    as_tuple,
    check_whole,
    set_noise_multiplier,
    set_real,
    truncate,
    wire_type,
)

MAX_TREES = 1000

GAUSSIAN_MEANING = "the noise's standard deviation divided by the sum's sensitivity"


@wire_type("gaussian")
@dataclass(frozen=True, slots=True)
class Gaussian(DpEvent):
    """A sum with Gaussian noise.

    Args:
        noise_multiplier: standard deviation of the noise divided by the L2 clipping norm of a summand (for DP-SGD:
            sigma / clipping norm), in [1e-3, 1e6].
        clipped: the summand that is clipped. "example": one record's vector, so that adding or removing a record moves
            the sum by at most one clipping norm. "microbatch": the clipped mean of several records' vectors; one record
            may move that mean between any two points of the ball, so the sum moves by up to two clipping norms under
            every relation. Which other records share a micro-batch must not depend on the record. A special record is
            left out of the mean.
    """

    noise_multiplier: float
    clipped: Literal["example", "microbatch"] = "example"

    def __post_init__(self) -> None:
        """Check the bounds."""
        set_noise_multiplier(self, GAUSSIAN_MEANING)
        if self.clipped not in ("example", "microbatch"):
            raise InvalidEventError(
                f'clipped is {truncate(self.clipped)}, but it must be "example" or "microbatch": what has its norm '
                "bounded before the sum."
            )


@wire_type("laplace")
@dataclass(frozen=True, slots=True)
class Laplace(DpEvent):
    """A sum with Laplace noise in every coordinate.

    Args:
        noise_multiplier: scale b of the noise divided by the L1 clipping norm of a record's vector, in [1e-3, 1e6].
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        """Check the bounds."""
        set_noise_multiplier(self, "the noise's scale divided by the sum's L1 sensitivity")


@wire_type("discrete_gaussian")
@dataclass(frozen=True, slots=True)
class DiscreteGaussian(DpEvent):
    """A sum of integer vectors with discrete Gaussian noise in every coordinate.

    Args:
        noise_multiplier: parameter sigma of the noise divided by the L2 clipping norm of a record's vector, in [1e-3,
            1e6].
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        """Check the bounds."""
        set_noise_multiplier(self, "the noise's parameter sigma divided by the sum's L2 sensitivity")


@wire_type("adaptive_clipping")
@dataclass(frozen=True, slots=True)
class AdaptiveClipping(DpEvent):
    """A noisy clipped sum, and the noisy count that adapts its norm.

    Both are released from the same records: together they are one Gaussian release of a longer vector. The count is the
    sum of b_i - 1/2, where b_i is 1 if record i was within the norm and else 0, so a record moves it by 1/2. The
    combined noise multiplier is z = (z_g^-2 + (2 s)^-2)^(-1/2) (Andrew, Thakkar, McMahan, Ramaswamy 2021, arXiv
    1905.03871, Theorem 1).

    Args:
        noise_multiplier: z, in [1e-3, 1e6], if the caller has increased the gradients' noise by this formula.
        gradient_noise_multiplier: z_g, the standard deviation of the gradients' noise divided by the clipping norm, in
            [1e-3, 1e6]; given with `count_noise_stddev` instead of `noise_multiplier`.
        count_noise_stddev: s, the standard deviation of the count's noise, in [1e-3, 1e6] records; if a system adds
            noise to the fraction of such records, multiply by the fraction's divisor.
    """

    noise_multiplier: float | None = None
    gradient_noise_multiplier: float | None = None
    count_noise_stddev: float | None = None

    def __post_init__(self) -> None:
        """Check the bounds, and that exactly one of the two forms is given."""
        parts = sum(part is not None for part in (self.gradient_noise_multiplier, self.count_noise_stddev))
        if parts != (2 if self.noise_multiplier is None else 0):
            raise InvalidEventError(
                "An event of type adaptive_clipping has either noise_multiplier, of the gradients and the count "
                "together, or both gradient_noise_multiplier and count_noise_stddev."
            )
        if self.noise_multiplier is not None:
            set_noise_multiplier(self, GAUSSIAN_MEANING)
            return
        gradients = "the standard deviation of the gradients' noise divided by the clipping norm"
        set_real(self, "gradient_noise_multiplier", NOISE_MULTIPLIERS, gradients)
        set_real(self, "count_noise_stddev", NOISE_MULTIPLIERS, "the standard deviation of the noise of the count")


@wire_type("tree_aggregation")
@dataclass(frozen=True, slots=True)
class TreeAggregation(DpEvent):
    """DP-FTRL: prefix sums from binary trees of noisy partial sums.

    Every record occurs in one step of one tree; several epochs are repetitions of this event.

    Args:
        noise_multiplier: standard deviation of each node's noise divided by the clipping norm, in [1e-3, 1e6].
        step_counts: steps of each tree between two restarts, at most 1,000 trees of 1 to 1e9 steps. Virtual steps that
            complete a tree count: they release the nodes above the last steps.
    """

    noise_multiplier: float
    step_counts: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check the bounds; a list becomes a tuple."""
        set_noise_multiplier(self, GAUSSIAN_MEANING)
        object.__setattr__(self, "step_counts", as_tuple("step_counts", self.step_counts, MAX_TREES, "whole numbers"))
        for steps in self.step_counts:
            check_whole("step_counts", steps, 1, MAX_COUNT, "the steps of a tree between two restarts")
