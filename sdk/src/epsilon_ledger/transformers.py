"""Hugging Face adapter: a `Trainer` fine-tunes with DP-SGD, and every step is authorized before the parameters move.

    trainer = Trainer(model, TrainingArguments(...), train_dataset=records)    # a model with LoRA adapters, say
    run = create_run(client, trainer, "tune", budget="letters/team")           # it starts from what the model is of
    make_private(trainer, run, noise_multiplier=1.0, max_grad_norm=1.0)
    trainer.train()

At a refusal the training ends as after its last step, with the parameters as before the refused one: `trainer.refusal`.
A checkpoint has the state of the run: `client.resume_run(run_state(checkpoint))`, then
`trainer.train(resume_from_checkpoint=checkpoint)`. Needs `pip install "epsilon-ledger-client[transformers]"`.
"""

import functools
import json
import math
import re
from pathlib import Path
from typing import Any, Final, cast

from transformers import Trainer

from epsilon_ledger import LedgerClient, Run
from epsilon_ledger._opacus.public_size import public_size_of
from epsilon_ledger._opacus.ranks import computed_by_rank_0
from epsilon_ledger._run.blocking_run import require_blocking_run
from epsilon_ledger._transformers.checks import check_trainer
from epsilon_ledger._transformers.losses import RecordLosses, record_losses_of
from epsilon_ledger._transformers.origins import origins_of, require_declared_origin
from epsilon_ledger._transformers.training import RUN_FILE, LedgerCallback, Privacy, PrivateTraining, run_state
from epsilon_ledger._wire.coercion import noise, real, whole
from epsilon_ledger.opacus import UnsupportedTrainingError

__all__ = [
    "RUN_FILE",
    "UnsupportedTrainingError",
    "create_run",
    "last_checkpoint",
    "make_private",
    "origins_of",
    "run_state",
]

_CHECKPOINT: Final = re.compile(r"checkpoint-(\d+)")


def create_run(client: LedgerClient, trainer: Trainer, name: str, **terms: Any) -> Run:  # noqa: ANN401 - passed on
    """Create the run of a Trainer's training, which declares what the model was loaded from.

    Args:
        client: of the ledger.
        trainer: with the model to train; in distributed training, rank 0's.
        name: of the run.
        **terms: as for `LedgerClient.create_run`; `starts_from`, if it is given, is what the run declares.

    Returns:
        The run, for `make_private`.

    Raises:
        ValueError: the model's weights are not in one file here, so that they have no digest: give `starts_from`.
        LedgerError: it was not created, or no response arrived.
    """
    if "starts_from" not in terms:
        terms["starts_from"] = origins_of(trainer.model)
    return client.create_run(name, **terms)


def make_private(
    trainer: Trainer,
    run: Run | None,
    *,
    noise_multiplier: float,
    max_grad_norm: float,
    sampling_probability: float | None = None,
    public_size: int | None = None,
    record_losses: RecordLosses | None = None,
) -> None:
    """Make a Trainer train with DP-SGD, and charge each of its steps to a run.

    A step draws each record by itself. On average it has as many as the Trainer's whole batch, and it is computed in
    physical batches of `per_device_train_batch_size`: `gradient_accumulation_steps` becomes 1. A record's loss depends
    on that record alone, and its gradient is clipped as a whole. Noise and draws have generators of their own, because
    the Trainer's has a public seed and is restored from checkpoints. In distributed training all processes call this,
    those other than rank 0 with None as the run.

    Args:
        trainer: before its training; its class becomes a private subclass of it.
        run: to charge.
        noise_multiplier: standard deviation of the noise over `max_grad_norm`, in [1e-3, 1e6].
        max_grad_norm: clipping norm of the gradient of a record, above 0; the Trainer's own clips nothing any more.
        sampling_probability: of each record in a step, in (0, 1]; by default the whole batch over the public size.
        public_size: public number of records, where the real one is private; by default the population's size, as for
            `epsilon_ledger.opacus.attach`.
        record_losses: from the model's outputs and inputs to the losses of the records, (n_records,), each of one
            record alone; by default the model's task decides.

    Raises:
        UnsupportedTrainingError: the cost of its steps would be unknown, for instance with a loss of the whole batch;
            or another run has trained the model, and the run does not declare that it starts from it.
        ValueError: a number is outside of its range.
        TypeError: it is no Trainer, or a private one; or another argument has another type.
    """
    if not isinstance(trainer, Trainer) or isinstance(trainer, PrivateTraining):
        raise TypeError(f"make_private takes a transformers.Trainer that is not private yet, not {trainer}.")
    if run is not None:
        require_blocking_run(run)
    if record_losses is not None and not callable(record_losses):
        raise TypeError(f"record_losses must be a function of the model's outputs and inputs, not {record_losses!r}.")
    noise(noise_multiplier)
    real("max_grad_norm", max_grad_norm, 0.0, math.inf, above=True)
    if sampling_probability is not None:
        real("sampling_probability", sampling_probability, 0.0, 1.0, above=True)
    if public_size is not None:
        whole("public_size", public_size)
    check_trainer(trainer, own_losses=record_losses is not None)
    if run is not None:
        require_declared_origin(trainer.model, run)
    args = trainer.args
    batch = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    if public_size is None and sampling_probability is not None:
        public_size = max(1, round(batch / sampling_probability))
    size = public_size or _size_of_population(trainer, run)
    records = size or len(trainer.train_dataset)
    probability = batch / records if sampling_probability is None else sampling_probability
    if not 0.0 < probability <= 1.0:
        raise ValueError(
            f"The sampling probability must be in (0, 1], not {probability:g}. There are {records} records, and a "
            f"batch has {batch}: per_device_train_batch_size times gradient_accumulation_steps times processes."
        )
    bare: Any = getattr(trainer.model, "get_base_model", lambda: trainer.model)()
    losses = record_losses or record_losses_of(bare, args.label_smoothing_factor)
    needs_labels = record_losses is not None or bool(getattr(bare.config, "is_encoder_decoder", False))
    private = cast("PrivateTraining", trainer)
    kind: Any = type(trainer)
    private.__class__ = _private_class(kind)
    private.privacy = Privacy(run, noise_multiplier, max_grad_norm, probability, size, batch, losses, needs_labels)
    private.refusal = None
    args.gradient_accumulation_steps = 1
    args.max_grad_norm = 0.0
    # Draws have no memory: those of an interrupted epoch are drawn anew, not skipped.
    args.ignore_data_skip = True
    trainer.add_callback(LedgerCallback(private))


def _size_of_population(trainer: Trainer, run: Run | None) -> int | None:
    """Find the public size on rank 0, for all ranks; None: the number of records is public."""

    def find() -> float:
        return 0.0 if run is None else float(public_size_of(run, trainer.train_dataset, None) or 0)

    return int(computed_by_rank_0(find)) or None


def last_checkpoint(output_dir: str) -> str | None:
    """Find the newest checkpoint that was written to its end; None without one.

    Args:
        output_dir: of the Trainer.
    """
    found = {
        int(match[1]): folder
        for folder in Path(output_dir).glob("checkpoint-*")
        if (match := _CHECKPOINT.fullmatch(folder.name)) and _is_complete(folder)
    }
    return str(found[max(found)]) if found else None


def _is_complete(checkpoint: Path) -> bool:
    try:
        for name in (RUN_FILE, "trainer_state.json"):  # the first and the last one that a Trainer writes
            json.loads((checkpoint / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True


@functools.cache
def _private_class(kind: type[Trainer]) -> type[PrivateTraining]:
    return type(kind.__name__, (PrivateTraining, kind), {"__module__": kind.__module__, "__doc__": kind.__doc__})
