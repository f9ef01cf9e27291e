"""Decaying noise schedules."""

from math import exp
from typing import Literal, TypeAlias

DecayMode: TypeAlias = Literal["time", "step", "exp"]


def decayed(mode: DecayMode | None, initial: float, rate: float, step: int) -> float:
    """Compute the noise multiplier of step `step`, from 0.

    With `initial` z and `rate` k it is z / (1 + k t), z (1 - k)^t or z exp(-k t) by mode, and z without one.
    """
    if mode == "time":
        return initial / (1.0 + rate * step)
    if mode == "step":
        return float(initial * (1.0 - rate) ** step)
    return initial if mode is None else initial * exp(-rate * step)
