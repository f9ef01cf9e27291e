"""Noise that shrinks from step to step."""

from math import exp
from typing import Literal, TypeAlias

DecayMode: TypeAlias = Literal["time", "step", "exp"]


def decayed(mode: DecayMode | None, initial: float, rate: float, step: int) -> float:
    """Compute a noise multiplier of a schedule.

    Args:
        mode: at step t it is z / (1 + k t), z (1 - k)^t or z exp(-k t); None: always z.
        initial: z.
        rate: k.
        step: t, from 0.

    Returns:
        The noise multiplier.
    """
    if mode == "time":
        return initial / (1.0 + rate * step)
    if mode == "step":
        return float(initial * (1.0 - rate) ** step)
    return initial if mode is None else initial * exp(-rate * step)
