"""What a training with MindArmour's `DPModel` really does, read from its parts before each step."""

from math import exp
from typing import Any, Final

from epsilon_ledger import Event, Run, gaussian
from epsilon_ledger._mindspore.pipelines import (
    UnsupportedTrainingError,
    require_no_batch_statistics,
    require_records_once,
)

_MODEL: Final = "mindarmour.privacy.diff_privacy.train.model"
_INSTEAD: Final = "Train with epsilon_ledger.mindarmour.DPModel, or give the callback the event of a step."
_ROUNDING: Final = 1 - 2.0**-20
"""Of a decay computed in 32 bits, step by step."""


class DpTraining:
    """A training whose clipping, noise and data are understood.

    Args:
        params: of the callback.
        run: to charge.

    Raises:
        UnsupportedTrainingError: the cost of this training is not known.
    """

    def __init__(self, params: Any, run: Run) -> None:  # noqa: ANN401 - MindSpore's
        cell = params.train_network
        if (type(cell).__module__, type(cell).__name__) != (_MODEL, "_TrainOneStepCell"):
            raise UnsupportedTrainingError(
                f"This training is by {type(cell).__name__}, whose noise is not known: it must be MindArmour's DPModel "
                f"with micro_batches, and without a loss scale manager. {_INSTEAD}"
            )
        if params.parallel_mode != "stand_alone" or params.device_number != 1:
            raise UnsupportedTrainingError(
                f"Each of {params.device_number} devices adds noise of its own, and their mean has less: train on one."
            )
        if cell._clip_mech is not None:  # noqa: SLF001 - it has no public names
            raise UnsupportedTrainingError(
                "With clip_mech, the clipping norm moves and the noise does not, so that the noise multiplier of a "
                f"pass is not known before it. {_INSTEAD}"
            )
        require_no_batch_statistics(params.network)
        require_records_once(params.train_dataset)
        if run.state.neighboring_relation != "replace_one":
            raise UnsupportedTrainingError(
                "The batches of MindSpore's data sets are no Poisson samples. A pass is charged once, because each "
                "record is in one batch of it, which holds if records are replaced: the population's relation must be "
                f"replace_one, not {run.state.neighboring_relation}. Under the latter, train with "
                "epsilon_ledger.mindarmour.DPModel, which draws Poisson samples."
            )
        self._cell = cell
        self._mechanism = cell._noise_mech or params.optimizer._mech  # noqa: SLF001 - as above
        self._require_fresh_noise()
        _require_exact(cell.weights)
        size = params.train_dataset.get_batch_size()
        self._clipped = "example" if cell._micro_batches == size else "microbatch"  # noqa: SLF001 - as above
        self.steps_of_pass: int = params.train_dataset.get_dataset_size()
        """Batches of a pass."""

    def noise_multiplier(self) -> float:
        """Read the noise multiplier of the next step."""
        mechanism = self._mechanism
        now = getattr(mechanism, "_noise_multiplier", mechanism._initial_noise_multiplier)  # noqa: SLF001 - as above
        norms = _number(mechanism._norm_bound) / _number(self._cell._norm_bound)  # noqa: SLF001 - as above
        return _number(now) * norms

    def event_of_pass(self) -> tuple[float, Event]:
        """Return the least noise multiplier of a pass that begins now, and its event: each record is in one batch."""
        least = self.noise_multiplier() * self._decay(self.steps_of_pass - 1)
        if self._clipped == "example":
            return least, gaussian(least)
        return least, gaussian(least, clipped="microbatch")

    def _decay(self, steps: int) -> float:
        """Return the factor of the noise after some steps, rounded down."""
        mechanism = self._mechanism
        policy = mechanism._decay_policy  # noqa: SLF001 - as above
        if policy is None:
            return 1.0
        rate = _number(mechanism._noise_decay_rate)  # noqa: SLF001 - as above
        if policy == "Step":
            factor = (1 - rate) ** steps
        elif policy == "Exp":
            factor = exp(-rate * steps)
        else:
            initial, now = mechanism._initial_noise_multiplier, mechanism._noise_multiplier  # noqa: SLF001 - as above
            before = _number(initial) / _number(now)
            factor = before / (before + rate * steps)
        return float(factor) * _ROUNDING**steps

    def _require_fresh_noise(self) -> None:
        from mindspore import get_seed  # noqa: PLC0415 - where a training of it is

        if self._mechanism._seed != 0 or get_seed() is not None:  # noqa: SLF001 - as above
            raise UnsupportedTrainingError(
                "The noise would be repeated in each process: MindArmour draws it from MindSpore's generators, which a "
                "seed of the mechanism or mindspore.set_seed determines. Set neither; numpy.random.seed is free. "
                f"{_INSTEAD}"
            )


def _require_exact(parameters: Any) -> None:  # noqa: ANN401 - MindSpore's
    """Require parameters that are fine enough for the noise."""
    for parameter in parameters:
        if str(parameter.dtype) not in {"Float32", "Float64"}:
            raise UnsupportedTrainingError(
                f"The parameter {parameter.name} is {parameter.dtype}, too coarse for the noise: train Float32."
            )


def _number(value: Any) -> float:  # noqa: ANN401 - a tensor of 32 bits
    # The shortest decimal of these 32 bits, which is what the program gave.
    return float(str(value.asnumpy()))
