"""A mechanism whose noise decreases from step to step."""

from dataclasses import dataclass
from typing import Final, get_args

from app.accounting.errors import InvalidEventError, UnsupportedEventError
from app.accounting.events.additive_noise import AdaptiveClipping, Gaussian
from app.accounting.events.base import (
    MAX_COUNT,
    DpEvent,
    Interval,
    check_event,
    check_whole,
    curve_count,
    set_real,
    truncate,
    wire_type,
)
from app.accounting.events.sampling import PoissonSampled
from app.accounting.formulas.noise_schedules import EXACT_STEPS, KNOTS, DecayMode, check_noise

MAX_STEPS: Final = 10_000_000
RATES: Final = {"time": Interval(0, 1e6), "step": Interval(0, 1, below=True), "exp": Interval(0, 1e6)}


@wire_type("decay")
@dataclass(frozen=True, slots=True)
class Decay(DpEvent):
    """A mechanism that runs at every step of a schedule with decreasing noise.

    With z the noise multiplier of `event` and k the decay rate, step t = 0, 1, 2, ... has z / (1 + k t) in mode "time",
    z (1 - k)^t in mode "step" and z exp(-k t) in mode "exp" (MindArmour's names).

    Args:
        mode: "time", "step" or "exp".
        decay_rate: k, at least 0, below 1 in mode "step".
        steps: number of steps, 1 to 1e7.
        event: the mechanism with the noise multiplier of step 0: a gaussian event, an adaptive_clipping event with one
            noise multiplier, or one of these on a Poisson sample.
        first_step: number t of the first step, 0 to 1e9.

    Raises:
        InvalidEventError: a field is out of bounds, or the noise multiplier falls below 1e-3 during the schedule.
        UnsupportedEventError: no sound bound is known for such an `event` along a schedule.
    """

    mode: DecayMode
    decay_rate: float
    steps: int
    event: DpEvent
    first_step: int = 0

    def __post_init__(self) -> None:
        """Check the bounds."""
        if self.mode not in get_args(DecayMode):
            raise InvalidEventError(f'mode is {truncate(self.mode)}, but it must be "time", "step" or "exp".')
        set_real(self, "decay_rate", RATES[self.mode], "how fast the noise shrinks from step to step")
        check_whole("steps", self.steps, 1, MAX_STEPS, "how many steps the event covers")
        check_whole("first_step", self.first_step, 0, MAX_COUNT, "the number of the first of the steps")
        check_event(self.event, "happens at each step")
        inner = self.event.event if isinstance(self.event, PoissonSampled) else self.event
        z = inner.noise_multiplier if isinstance(inner, Gaussian | AdaptiveClipping) else None
        if z is None:
            raise UnsupportedEventError(
                "A decay event may hold a gaussian event, an adaptive_clipping event with one noise_multiplier, or a "
                "poisson_sampled event of one of these: for others no bound along a schedule is proven here."
            )
        check_noise(self.mode, z, self.decay_rate, self.first_step, self.first_step + self.steps - 1)


@curve_count.register
def _(event: Decay) -> int:
    return event.steps if event.steps <= EXACT_STEPS else KNOTS
