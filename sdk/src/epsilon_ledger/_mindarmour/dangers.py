"""Warnings about arguments that protect less, or cost more, than they seem to."""

import sys
import warnings
from math import hypot, sqrt
from types import FrameType
from typing import Final

from epsilon_ledger._wire.coercion import whole

_WORTH_KEEPING: Final = 0.95
"""Part of the noise multiplier that clipping should leave."""


class PrivacyWarning(UserWarning):
    """Warning about an argument that protects less, or costs more, than it seems to."""


def warn(message: str) -> None:
    """Warn at the line of the job that called this package."""
    frames = _frames_of_this_client()
    warnings.warn(message, PrivacyWarning, stacklevel=frames + 1)


def check_seed(seed: int) -> int | None:
    """Check a seed by MindArmour's rule, and warn unless it is 0.

    Args:
        seed: 0 for secure random numbers.

    Returns:
        The seed for `insecure_seed`; None for secure random numbers.

    Raises:
        TypeError: it is not an integer.
        ValueError: it is negative.
    """
    if whole("seed", seed, 0) == 0:
        return None
    warn(
        f"seed={seed} makes the noise predictable: anyone who knows the seed can remove it. Leave it at 0, which takes "
        "the operating system's random numbers, for everything but tests."
    )
    return seed


def warn_of_count_noise(noise_multiplier: float, fraction_stddev: float, summands: float, *, example: bool) -> None:
    """Warn if the noise of adaptive clipping's count is so small that the count costs more than it should.

    Args:
        noise_multiplier: z of the sum.
        fraction_stddev: standard deviation of the fraction's noise.
        summands: divisor of the count.
        example: whether a summand is one example's gradient, so that it moves the count by 1/2; otherwise by 1, while
            it moves the sum by two clipping norms.
    """
    z, count = (noise_multiplier, 2.0) if example else (noise_multiplier / 2, 1.0)
    stddev = fraction_stddev * summands
    together = 1 / hypot(1 / z, 1 / (count * stddev))
    if together >= _WORTH_KEEPING * z:
        return
    enough = z / count / sqrt(_WORTH_KEEPING**-2 - 1) / summands
    warn(
        f"fraction_stddev={fraction_stddev:g} is noise of {stddev:g} on a count of {summands:g} clipped gradients. The "
        f"count is released in every step, and is charged: noise multiplier {z:g} counts as {together:.3g}. Give "
        f"fraction_stddev={enough:.2g}, which keeps {_WORTH_KEEPING:.0%} of it, or leave clip_mech out."
    )


def warn_of_microbatches(micro_batches: int, batch_size: int, noise_multiplier: float) -> None:
    """Warn of clipped means, which a record can move by twice the clipping norm."""
    warn(
        f"micro_batches={micro_batches} of {batch_size} records clips means of {batch_size / micro_batches:g} "
        "gradients: one record can move a clipped mean by twice norm_bound, so that noise multiplier "
        f"{noise_multiplier:g} protects and costs as {noise_multiplier / 2:g} would. Give "
        f"micro_batches={batch_size}, which clips each record's gradient."
    )


def warn_of_norms(noise_norm: float, clipping_norm: float, noise_multiplier: float) -> None:
    """Warn if noise was made for another norm than the one that gradients are clipped to."""
    if noise_norm != clipping_norm:
        warn(
            f"The noise is made for norm_bound={noise_norm:g}, but gradients are clipped to {clipping_norm:g}: the "
            f"noise multiplier is {noise_multiplier * noise_norm / clipping_norm:g}, not {noise_multiplier:g}, and is "
            "charged so. Give both the same norm_bound."
        )


def _frames_of_this_client() -> int:
    """Count the innermost frames that belong to this client."""
    count = 0
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the documented way to look at callers
    while frame is not None and frame.f_globals.get("__name__", "").startswith("epsilon_ledger."):
        count, frame = count + 1, frame.f_back
    return count
