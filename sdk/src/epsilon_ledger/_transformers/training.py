"""The methods of a Trainer that make it private."""

import functools
import json
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import torch
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.grad_sample import GradSampleHooks
from opacus.optimizers import DPOptimizer
from opacus.optimizers.ddpoptimizer import DistributedDPOptimizer
from opacus.validators import ModuleValidator
from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from epsilon_ledger import BudgetExceededError, Run
from epsilon_ledger._opacus.errors import UnsupportedTrainingError
from epsilon_ledger._opacus.hook import LedgerHook
from epsilon_ledger._run.run_properties import RunStateDict, parse_state
from epsilon_ledger._transformers.checks import check_hooks, check_model
from epsilon_ledger._transformers.loading import private_loader
from epsilon_ledger._transformers.losses import RecordLosses, require_separate_losses
from epsilon_ledger.opacus import attach, discard_batch

RUN_FILE: Final = "epsilon_ledger.json"
"""Name of the run's state in the folder of a checkpoint or a saved model."""

_LOGGER: Final = logging.getLogger("epsilon_ledger.transformers")


@dataclass(frozen=True)
class Privacy:
    """How a Trainer is private.

    Args:
        run: to charge; None on ranks other than rank 0.
        noise_multiplier: standard deviation of the noise over the clipping norm.
        max_grad_norm: clipping norm of a record's gradient.
        sampling_probability: of each record, in (0, 1].
        public_size: number of records, where the real one is private; else None.
        expected_batch_size: of all processes together.
        record_losses: from the model's outputs and inputs to the loss of each record.
        keep_labels: whether the model needs the labels among its inputs.
    """

    run: Run | None
    noise_multiplier: float
    max_grad_norm: float
    sampling_probability: float
    public_size: int | None
    expected_batch_size: int
    record_losses: RecordLosses
    keep_labels: bool


class PrivateTraining(Trainer):
    """Mixin of a Trainer that takes each step on a Poisson sample, with noise, and asks before it.

    A draw is one step of the Trainer: the physical batches of it are accumulated within `training_step`.
    """

    privacy: Privacy
    refusal: BudgetExceededError | None
    """The refusal that ended the training, or None."""
    _hooked: nn.Module | None = None
    _losses_are_separate = False

    def train(self, resume_from_checkpoint: str | bool | None = None, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401, FBT001 - the Trainer's signature
        """Train as the Trainer does, until its end or a refusal.

        Args:
            resume_from_checkpoint: as the Trainer has it; the checkpoint must be of a charged training.
            *arguments: as the Trainer has them.
            **options: as the Trainer has them.

        Returns:
            As the Trainer.

        Raises:
            UnsupportedTrainingError: the steps cannot be accounted for.
            ValueError: the checkpoint is of no charged training, or of another run.
            LedgerError: the ledger does not answer.
        """
        checkpoint = resume_from_checkpoint
        if checkpoint is True:
            checkpoint = get_last_checkpoint(self.args.output_dir)
        if checkpoint:
            self._require_own_checkpoint(str(checkpoint))
        self.refusal = None
        if isinstance(_innermost(self.optimizer), DPOptimizer):
            # An exception of an earlier training may have left a draw without a step.
            discard_batch(self._private_optimizer)
        return super().train(resume_from_checkpoint, *arguments, **options)

    def _require_own_checkpoint(self, checkpoint: str) -> None:
        run, charged = self.privacy.run, run_state(checkpoint)["run"]
        if run is not None and run.id != charged:
            raise ValueError(
                f"The checkpoint was charged to {charged}, but this training to {run.id}: make the Trainer private for "
                "client.resume_run(run_state(checkpoint)). To charge another run, load the checkpoint's model before "
                "make_private, create the run with starts_from=[run_state(checkpoint)], and train without a checkpoint."
            )

    def get_train_dataloader(self) -> DataLoader:
        """Return a loader of Poisson samples."""
        return private_loader(
            super().get_train_dataloader(),
            sampling_probability=self.privacy.sampling_probability,
            size=self.args.per_device_train_batch_size,
            workers=self.args.world_size,
        )

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Create the optimizer that clips, adds noise and asks."""
        optimizer = super().create_optimizer(model)
        if isinstance(_innermost(optimizer), DPOptimizer):
            return optimizer
        check_model(self.model)
        self.model.train()
        ModuleValidator.validate(self.model, strict=True)
        if self._hooked is not self.model:
            GradSampleHooks(self.model, loss_reduction="sum")  # an error if the model has other ones
            self._hooked = self.model
        workers = self.args.world_size
        kind: Any = DPOptimizer if workers == 1 else DistributedDPOptimizer
        private = kind(
            optimizer,
            noise_multiplier=self.privacy.noise_multiplier,
            max_grad_norm=self.privacy.max_grad_norm,
            expected_batch_size=self.privacy.expected_batch_size / workers,
        )
        check_hooks(private.params)
        private.step = functools.partial(self._step, private.step)
        self.optimizer = private
        return cast("torch.optim.Optimizer", private)

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:  # noqa: ANN401, ARG002 - the Trainer's signature
        """Clip and sum the gradients of a draw, except for the last physical batch, which the optimizer's step adds."""
        model.train()
        optimizer = self._private_optimizer
        if not isinstance(optimizer.step_hook, LedgerHook):
            raise UnsupportedTrainingError("This Trainer asks nobody: keep the callback that make_private has added.")
        optimizer.zero_grad()
        loss = torch.zeros((), device=self.args.device)
        if not inputs:
            for parameter in optimizer.params:
                parameter.grad_sample = parameter.new_zeros((0, *parameter.shape))
        for index, (records, batch) in enumerate(inputs):
            if index:
                optimizer.signal_skip_step()
                optimizer.pre_step()
                optimizer.zero_grad()
            loss += self._backward(model, batch, records)
        self._last_loss = loss / max(1, sum(records for records, _ in inputs))
        return self._last_loss

    def log(self, logs: dict[str, float], *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - the Trainer's signature
        """Log the epsilon and the used share too, and no norm of gradients without noise."""
        logs.pop("grad_norm", None)
        run = self.privacy.run
        if run is not None:
            numbers = {"epsilon": run.epsilon, "used": run.used}
            logs |= {name: number for name, number in numbers.items() if math.isfinite(number)}
        super().log(logs, *arguments, **options)

    def save_model(self, output_dir: str | None = None, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - the Trainer's signature
        """Save the model, in checkpoints too, and beside it the state of the run that it was charged to."""
        super().save_model(output_dir, *arguments, **options)
        if self.privacy.run is not None:
            path = Path(output_dir or self.args.output_dir) / RUN_FILE
            path.write_text(json.dumps(self.privacy.run.state_dict()), encoding="utf-8")

    def attach(self, loader: DataLoader, max_steps: int) -> None:
        """Attach the optimizer to the run and the loader of this training.

        Raises:
            UnsupportedTrainingError: a step would be of several draws.
        """
        if self.args.gradient_accumulation_steps != 1:
            raise UnsupportedTrainingError(
                f"gradient_accumulation_steps is {self.args.gradient_accumulation_steps} again: leave it at 1, and set "
                f"it before make_private. A draw is split into physical batches as it is."
            )
        run = self.privacy.run
        attach(self._private_optimizer, run, data_loader=loader, public_size=self.privacy.public_size)
        if run is not None:
            run.expected_steps = run.next_step + max(1, max_steps - self.state.global_step)

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> nn.Module:  # noqa: ANN401, FBT001, FBT002 - the Trainer's signature
        """Leave gradients to Opacus in distributed training: torch would average them without noise."""
        if training and self.args.world_size > 1:
            wrapped = isinstance(model, DifferentiallyPrivateDistributedDataParallel)
            if wrapped:
                return model
            # For its mixed precision; torch's wrapper is what an evaluation has not.
            prepared = self.accelerator.prepare_model(model, evaluation_mode=True)
            return DifferentiallyPrivateDistributedDataParallel(prepared)
        return super()._wrap_model(model, training, dataloader)

    @property
    def _private_optimizer(self) -> DPOptimizer:
        return _innermost(self.optimizer)

    def _backward(self, model: nn.Module, batch: Any, records: int) -> torch.Tensor:  # noqa: ANN401 - of any collator
        """Compute the gradient of each record of a physical batch, and return the sum of their losses."""
        inputs = self._prepare_inputs(batch)
        given = inputs if self.privacy.keep_labels else {key: value for key, value in inputs.items() if key != "labels"}
        with self.compute_loss_context_manager():
            outputs = model(**given)
            losses = self.privacy.record_losses(outputs, inputs)
        if losses.shape != (records,):
            raise UnsupportedTrainingError(
                f"There are {records} records in this physical batch, and losses of the shape {tuple(losses.shape)}: "
                f"one loss is needed for each record. Do not pack several records into one row."
            )
        if records > 1 and not self._losses_are_separate:
            require_separate_losses(self.privacy.record_losses, outputs, inputs)
            self._losses_are_separate = True
        total = losses.sum()
        total.backward()
        self._take_gradients(records)
        return total.detach()

    def _take_gradients(self, records: int) -> None:
        for parameter in self._private_optimizer.params:
            if parameter.grad_sample is None and parameter.grad is None:  # not used by the loss
                parameter.grad_sample = parameter.new_zeros((records, *parameter.shape))
            elif parameter.grad_sample is None or len(parameter.grad_sample) != records:
                raise UnsupportedTrainingError(
                    f"A parameter of the shape {tuple(parameter.shape)} has no gradient of each record: its layer sees "
                    f"the batch as a whole, as position embeddings do. Freeze it (LoRA does), or give the model the "
                    f"layer's inputs for each record, such as position_ids in the collator's batches."
                )
            # Mixed precision would clip by norms that are computed in half precision.
            parameter.grad_sample = parameter.grad_sample.to(parameter.dtype)
            parameter.grad = None  # without noise; callbacks could log it

    def _step(self, step: Callable[..., Any], closure: Callable[[], Any] | None = None) -> Any:  # noqa: ANN401 - the optimizer's
        """Take the optimizer's step; at a refusal stop the training, with all parameters as they were."""
        accelerated: Any = self.optimizer
        accelerated._is_overflow = False  # noqa: SLF001 - how Accelerate knows of a step that was not taken
        self.refusal = None
        try:
            released = step(closure)
        except BudgetExceededError as refusal:
            self.refusal = refusal
            self.control.should_training_stop = True
            accelerated._is_overflow = True  # noqa: SLF001 - as above
            if hasattr(self, "_tr_loss"):  # where the Trainer has added the loss of this step already
                self._tr_loss -= self._last_loss
            _LOGGER.warning("The training stops after %d steps: %s", self.state.global_step, refusal)
            return None
        self._private_optimizer.zero_grad()  # gradients of single records would be saved with the model's object
        return released


class LedgerCallback(TrainerCallback):
    """Callback that attaches at the beginning, and does not count a refused step.

    Args:
        trainer: a private one.
    """

    def __init__(self, trainer: PrivateTraining) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **trained: Any) -> None:  # noqa: ANN401, ARG002 - Transformers' signature
        """Attach the optimizer of this training.

        Args:
            args: of the Trainer.
            state: of the Trainer.
            control: of the Trainer.
            **trained: among others the loader.
        """
        self._trainer.attach(trained["train_dataloader"], state.max_steps)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **trained: Any) -> None:  # noqa: ANN401, ARG002 - as above
        """Take back the step that the Trainer is about to count."""
        if self._trainer.refusal is not None:
            state.global_step -= 1


def run_state(checkpoint: str) -> RunStateDict:
    """Read the run's state from a checkpoint, for `client.resume_run`.

    Args:
        checkpoint: folder that a private Trainer has written.

    Raises:
        ValueError: it was not written by a private Trainer.
    """
    path = Path(checkpoint) / RUN_FILE
    if not path.is_file():
        raise ValueError(
            f"{checkpoint} has no {RUN_FILE}: it was not written by a charged training, and what it was trained on is "
            f"unknown. Load its model before make_private if that is public, and train without a checkpoint."
        )
    state: RunStateDict = json.loads(path.read_text(encoding="utf-8"))
    parse_state(state)
    return state


def _innermost(optimizer: Any) -> Any:  # noqa: ANN401 - Accelerate's, or the one in it
    return getattr(optimizer, "optimizer", optimizer)
