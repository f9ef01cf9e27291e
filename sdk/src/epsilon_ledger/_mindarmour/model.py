"""MindArmour's model: a training that asks before each noisy step."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilon_ledger import BudgetExceededError, Run
from epsilon_ledger._mindarmour import frameworks
from epsilon_ledger._mindarmour.callbacks import RunContext, step_end
from epsilon_ledger._mindarmour.clipping import AdaClippingWithGaussianRandom
from epsilon_ledger._mindarmour.dangers import warn, warn_of_count_noise, warn_of_microbatches
from epsilon_ledger._mindarmour.monitors import RDPMonitor, ZCDPMonitor
from epsilon_ledger._mindarmour.noise import MAX_NORM, MIN_NORM, NoiseAdaGaussianRandom, NoiseGaussianRandom
from epsilon_ledger._mindarmour.optimizers import DPOptimizer, Momentum
from epsilon_ledger._mindspore.pipelines import UnsupportedTrainingError
from epsilon_ledger._run.blocking_run import require_blocking_run
from epsilon_ledger._run.public_size import choose_public_size
from epsilon_ledger._wire.coercion import real, whole
from epsilon_ledger.mechanisms import AdaptiveClipping, GaussianNoise, MicrobatchSampler, PoissonSampler
from epsilon_ledger.mechanisms.arrays import split

Array = NDArray[Any]
Members = Array | Sequence[Array]


class DPModel:
    """Differentially private training that asks before each step.

    A step draws a Poisson sample of the records, clips the gradients of its members, adds them up, authorizes the
    release, adds noise, divides by the expected number of summands, and lets the optimizer move the parameters.

    Args:
        micro_batches: pieces of a batch. As many as a batch has records: each record's gradient is clipped. Fewer: the
            mean of each piece, which a record can move by twice the norm; a warning says what that costs.
        norm_bound: L2 norm to which gradients are clipped, over all parameters together, in [1e-9, 1e9].
        noise_mech: the noise; or else the optimizer has it.
        clip_mech: adapts the norm, and the noise follows it; for constant noise only.
        optimizer: from `DPOptimizerClassFactory`; with `noise_mech`, `SGD`, `Momentum` or `Adam`, or one of MindSpore.
        run: to charge.
        network: an object with gradients(data, label), or a cell of MindSpore.
        loss_fn: of a cell of MindSpore.
        batch_size: expected number of records in a batch, if the data set has none.
        public_size: public number of records, from which the sampling probability and the steps of an epoch are
            derived; by default the population's size under add_or_remove_one, where the real number is private.

    Raises:
        TypeError: a number is not a number, or the run is an AsyncRun or no run.
        ValueError: an argument is out of its bounds, or the arguments do not fit together.
    """

    def __init__(  # noqa: PLR0913 - MindArmour's and five more
        self,
        micro_batches: int = 2,
        norm_bound: float = 1.0,
        noise_mech: NoiseGaussianRandom | None = None,
        clip_mech: AdaClippingWithGaussianRandom | None = None,
        optimizer: Any = Momentum,  # noqa: ANN401 - of arrays or of MindSpore
        *,
        run: Run,
        network: Any,  # noqa: ANN401 - as above
        loss_fn: Any = None,  # noqa: ANN401 - as above
        batch_size: int | None = None,
        public_size: int | None = None,
    ) -> None:
        if micro_batches is None:
            raise ValueError("micro_batches must be a number: MindArmour's None trains without clipping and noise.")
        self._micro_batches = whole("micro_batches", micro_batches)
        self._norm = real("norm_bound", norm_bound, MIN_NORM, MAX_NORM)
        if optimizer is None or isinstance(optimizer, type):
            raise ValueError("optimizer must be an optimizer of the network's parameters, not None or its class.")
        private = isinstance(optimizer, DPOptimizer)
        if private == (noise_mech is not None):
            raise ValueError(
                "Give either noise_mech, or an optimizer from DPOptimizerClassFactory, which has the noise."
            )
        if private and optimizer.micro_batches != micro_batches:
            raise ValueError(
                f"The optimizer is made for {optimizer.micro_batches} micro_batches, but the model for "
                f"{micro_batches}: give both the same."
            )
        if noise_mech is not None and not isinstance(noise_mech, NoiseGaussianRandom):
            raise TypeError(f"noise_mech must come from NoiseMechanismsFactory, not {noise_mech!r}.")
        if clip_mech is not None and not isinstance(clip_mech, AdaClippingWithGaussianRandom):
            raise TypeError(f"clip_mech must come from ClipMechanismsFactory, not {clip_mech!r}.")
        self._noise_mech: NoiseGaussianRandom = noise_mech or optimizer.mechanism
        if clip_mech is not None and isinstance(self._noise_mech, NoiseAdaGaussianRandom):
            raise ValueError("clip_mech must be None when the noise is adaptive, 'AdaGaussian'.")
        self._clip_mech = clip_mech
        self._optimizer = optimizer.optimizer if private else optimizer
        self._network = network
        self._gradients = frameworks.gradients_of(network, loss_fn, self._optimizer)
        self._batch_size = batch_size
        self._public_size = None if public_size is None else whole("public_size", public_size)
        require_blocking_run(run)
        self._run = run
        self._noise: GaussianNoise | AdaptiveClipping | None = None
        self._made_for: tuple[str, float] | None = None
        self._state: object = None
        self._drawn: tuple[tuple[int, float], Any] | None = None
        """A sample that was not charged, with the number of its records and its sampling probability."""
        self.refusal: BudgetExceededError | None = None
        """The refusal that ended the last training, or None."""

    def train(
        self,
        epoch: int,
        train_dataset: Any,  # noqa: ANN401 - of arrays or of MindSpore
        callbacks: Any = None,  # noqa: ANN401 - one or several
        dataset_sink_mode: bool = False,  # noqa: ARG002, FBT001, FBT002 - MindSpore's; each step is asked for
    ) -> None:
        """Train until the last epoch or the first refusal.

        A refusal ends the training without an exception: `refusal` has it, and the parameters are as before the step.

        Args:
            epoch: number of epochs, of public size // batch size steps each.
            train_dataset: arrays (data, label), or a data set of MindSpore with batches of two columns. Its order and
                its batches do not matter.
            callbacks: one or several, whose step_end(run_context) is called after each step.
            dataset_sink_mode: ignored.

        Raises:
            LedgerError: as `Run.authorize`, except a refusal.
            UnsupportedTrainingError: the number of records is private, and no public size is known.
            ValueError: an argument is out of its bounds, the noise decays and the run's step is unknown, or a sample of
                other records is left by a step that failed.
        """
        listeners = callbacks if isinstance(callbacks, list | tuple) else [] if callbacks is None else [callbacks]
        self._compare(listeners)
        ends = [step_end(listener) for listener in listeners]
        for context in self.steps(epoch, train_dataset):
            for end in ends:
                end(context)
            if context.get_stop_requested():
                return

    def steps(self, epoch: int, train_dataset: Any) -> Iterator[RunContext]:  # noqa: ANN401 - as above
        """Train as `train`, and yield after each step.

        Args:
            epoch: number of epochs.
            train_dataset: as for `train`.

        Yields:
            The number of the step, and what else a callback learns.

        Raises:
            LedgerError: as `train`.
            ValueError: as `train`.
        """
        records = frameworks.records_of(train_dataset, self._batch_size)
        size = self._size(records)
        sampler = self._sampler(records, size)
        noise = self._mechanism(sampler)
        batches = size // records.batch_size
        self._run.expected_steps = self._run.next_step + whole("epoch", epoch) * batches
        self.refusal = None
        for step in range(1, epoch * batches + 1):
            try:
                self._step(records, sampler, noise)
            except BudgetExceededError as refusal:
                self.refusal = refusal
                return
            yield RunContext(
                cur_step_num=step,
                cur_epoch_num=(step - 1) // batches + 1,
                batch_num=batches,
                epoch_num=epoch,
                network=self._network,
                optimizer=self._optimizer,
            )

    def state_dict(self) -> object:
        """Return the state of noise and norm for a checkpoint, besides parameters, optimizer and run."""
        return self._state if self._noise is None else self._noise.state_dict()

    def load_state_dict(self, state: object) -> None:
        """Restore a checkpoint; the next `train` checks it.

        Args:
            state: from `state_dict` of a model with the same arguments.
        """
        self._noise, self._state = None, state

    def _size(self, records: frameworks.Records) -> int:
        found = choose_public_size(self._run, len(records), self._public_size, UnsupportedTrainingError)
        size = len(records) if found is None else found
        if records.batch_size > size:
            raise ValueError(f"A batch has {records.batch_size} of {size} records, but at most all of them.")
        return size

    def _sampler(self, records: frameworks.Records, size: int) -> PoissonSampler | MicrobatchSampler:
        batch, count = records.batch_size, self._micro_batches
        if batch % count:
            raise ValueError(f"micro_batches must divide the batch size, {batch}, but is {count}.")
        probability = batch / size
        if count == batch:
            return PoissonSampler(len(records), probability, expected_batch_size=batch)
        warn_of_microbatches(count, batch, self._noise_mech.initial_noise_multiplier)
        return MicrobatchSampler(len(records), probability, count)

    def _mechanism(self, sampler: PoissonSampler | MicrobatchSampler) -> GaussianNoise | AdaptiveClipping:
        made_for = sampler.clipped, sampler.expected_summands
        if self._noise is not None and self._made_for == made_for:
            return self._noise
        state = self.state_dict()
        noise = self._noise_mech.mechanism(self._norm, sampler.clipped)
        made: GaussianNoise | AdaptiveClipping = noise
        if self._clip_mech is not None:
            summands = sampler.expected_summands
            each = sampler.clipped == "example"
            warn_of_count_noise(noise.noise_multiplier, self._clip_mech.fraction_stddev, summands, example=each)
            made = self._clip_mech.mechanism(noise, summands)
        if state is not None:
            made.load_state_dict(state)
        elif self._noise_mech.decay_mode is not None:
            if self._run.step is None:
                raise ValueError(
                    "Noise that decays goes on at the step that the training has reached, which the ledger cannot "
                    "know: load_state_dict, or resume the run from what run.state_dict() returned."
                )
            noise.load_state_dict({"releases": self._run.step, "clipping_norm": self._norm})
        self._noise, self._made_for = made, made_for
        return made

    def _compare(self, listeners: Sequence[Any]) -> None:
        """Warn of monitors that watch other noise than this training's."""
        mech = self._noise_mech
        own = mech.initial_noise_multiplier, mech.decay_mode, mech.decay_rate
        for listener in listeners:
            if isinstance(listener, RDPMonitor | ZCDPMonitor) and listener.schedule != own:
                warn(
                    f"The monitor expects noise {listener.schedule} (multiplier, decay, rate), but this training adds "
                    f"{own}: what it suggests does not fit. Give it the mechanism's."
                )

    def _step(
        self,
        records: frameworks.Records,
        sampler: PoissonSampler | MicrobatchSampler,
        noise: GaussianNoise | AdaptiveClipping,
    ) -> None:
        members = self._sample(records, sampler)
        shapes = frameworks.shapes_of(self._optimizer)
        rows = _rows(self._gradients, records, members, shapes)
        release = noise.prepare(rows)
        # From here on nothing depends on the sample but what is released.
        self._drawn = None
        release.authorize(self._run, sampler.sampling_probability)
        gradient = release.draw()
        gradient /= sampler.expected_summands
        frameworks.move(self._optimizer, split(gradient, shapes))

    def _sample(self, records: frameworks.Records, sampler: PoissonSampler | MicrobatchSampler) -> Members:
        """Draw a sample, or return the one whose step has failed: its records may be why."""
        made_for = len(records), sampler.sampling_probability
        if self._drawn is None:
            self._drawn = made_for, sampler.sample()
        if self._drawn[0] != made_for:
            raise ValueError(
                "The last training failed after it had drawn a sample, which was not charged: train on its records "
                "first, or make a new DPModel."
            )
        members: Members = self._drawn[1]
        return members


def _rows(
    gradients: Callable[[Array, Array], list[Array]],
    records: frameworks.Records,
    members: Members,
    shapes: list[tuple[int, ...]],
) -> list[Array]:
    """Compute each member's gradients: one array (members, size of the parameter) for each parameter."""
    rows = [np.empty((len(members), int(np.prod(shape)))) for shape in shapes]
    for place, member in enumerate(members):
        chosen = np.atleast_1d(member)
        found = gradients(records.data[chosen], records.label[chosen])
        if [part.shape for part in found] != shapes:
            raise ValueError(
                f"The gradients have the shapes {[part.shape for part in found]}, the parameters {shapes}."
            )
        for row, part in zip(rows, found, strict=True):
            row[place] = part.ravel()
    return rows
