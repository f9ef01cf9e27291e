"""MindSpore callbacks: a training asks before each step, and ends without an exception at a refusal.

    model = DPModel(micro_batches=32, noise_mech=noise, network=network, loss_fn=loss, optimizer=optimizer)
    model.train(epochs, dataset, callbacks=[LedgerCallback(run)])

Needs `pip install "epsilon-ledger-client[mindspore]"`. The monitors are those of `epsilon_ledger.mindarmour`, as
callbacks.
"""

from types import TracebackType
from typing import Any, Self

from mindspore.train import Callback

from epsilon_ledger import BudgetExceededError, Event, Run
from epsilon_ledger import mindarmour as _mindarmour
from epsilon_ledger._mindspore.pipelines import UnsupportedTrainingError
from epsilon_ledger._mindspore.trainings import DpTraining
from epsilon_ledger._run.blocking_run import require_blocking_run

__all__ = ["LedgerCallback", "PrivacyMonitorFactory", "RDPMonitor", "UnsupportedTrainingError", "ZCDPMonitor"]


class LedgerCallback(Callback):  # type: ignore[misc] # MindSpore is not locked
    """Callback that authorizes each step before it, and ends the training at a refusal.

    A refused step does not happen: the network is unchanged, `refusal` is set, and `Model.train` returns.

    With MindArmour's `DPModel`, clipping and noise are read from the model. Its batches are no Poisson samples, so that
    each pass through the data is charged once, before its first step, as one release of the least noise of the pass,
    under `replace_one`: each record is in one batch of it. A pass that is interrupted has been charged whole.

    Args:
        run: to charge.
        event: of a step, which is then charged as it is: for other trainings, and under the caller's responsibility.

    Raises:
        TypeError: the run is an AsyncRun, or no run.
    """

    def __init__(self, run: Run, *, event: Event | None = None) -> None:
        super().__init__()
        self.run = require_blocking_run(run)
        self.refusal: BudgetExceededError | None = None
        """The refusal that ended the training, or None."""
        self._event = event
        self._training: DpTraining | None = None
        self._least: float | None = None
        self._left = 0
        self._taken = 0

    def __enter__(self) -> Self:
        """Forget an earlier training's refusal."""
        self.refusal = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """End the training without an exception after a refusal."""
        return error is not None and error is self.refusal

    def on_train_begin(self, run_context: Any) -> None:  # noqa: ANN401 - MindSpore's
        """Read what the training does.

        Args:
            run_context: of the training.

        Raises:
            UnsupportedTrainingError: the cost of this training is not known; nothing was charged.
        """
        params = run_context.original_args()
        self._taken = params.cur_step_num
        if self._event is None:
            self._training = DpTraining(params, self.run)
            self.run.expected_steps = self.run.next_step + params.epoch_num

    def on_train_epoch_begin(self, run_context: Any) -> None:  # noqa: ANN401, ARG002 - MindSpore's
        """Begin a pass, which is not charged yet."""
        self._least = None

    def on_train_step_begin(self, run_context: Any) -> None:  # noqa: ANN401 - MindSpore's
        """Authorize the next step, or all steps of the next sink.

        Args:
            run_context: of the training.

        Raises:
            UnsupportedTrainingError: the noise has become less than was charged, or the steps are no pass.
            LedgerError: as `Run.authorize`; the step does not happen.
        """
        params = run_context.original_args()
        steps, self._taken = params.cur_step_num - self._taken, params.cur_step_num
        try:
            if self._training is None:
                self.run.authorize(steps, event=self._event)
            else:
                self._authorize_pass(self._training, steps)
        except BudgetExceededError as refusal:
            self.refusal = refusal
            raise

    def _authorize_pass(self, training: DpTraining, steps: int) -> None:
        if steps not in {1, training.steps_of_pass}:
            raise UnsupportedTrainingError(
                f"A sink has {steps} steps, and a pass {training.steps_of_pass}: leave sink_size out, or set "
                "dataset_sink_mode=False."
            )
        if self._least is None:
            least, event = training.event_of_pass()
            self.run.authorize(event=event)
            self._least, self._left = least, training.steps_of_pass
        elif training.noise_multiplier() < self._least:
            raise UnsupportedTrainingError(
                f"The noise multiplier is {training.noise_multiplier():g}, less than this pass was charged for, "
                f"{self._least:g}: it must not be changed within a pass."
            )
        self._left -= steps
        if self._left < 0:
            raise UnsupportedTrainingError(
                f"This pass has more batches than the data set has, {training.steps_of_pass}: a record may be in two."
            )


class RDPMonitor(_mindarmour.RDPMonitor, Callback):  # type: ignore[misc] # MindSpore is not locked
    """As `epsilon_ledger.mindarmour.RDPMonitor`, for `Model.train`."""


class ZCDPMonitor(_mindarmour.ZCDPMonitor, Callback):  # type: ignore[misc] # MindSpore is not locked
    """As `epsilon_ledger.mindarmour.ZCDPMonitor`, for `Model.train`."""


class PrivacyMonitorFactory(_mindarmour.PrivacyMonitorFactory):
    """Factory of privacy monitors that are callbacks."""

    _monitors = {"rdp": RDPMonitor, "zcdp": ZCDPMonitor}  # noqa: RUF012 - annotated in the base class
