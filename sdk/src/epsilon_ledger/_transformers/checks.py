"""What a Trainer must not be set up for."""

from typing import Any

from opacus.optimizers import DPOptimizer
from torch import nn
from torch.utils.data import IterableDataset
from transformers import Trainer

from epsilon_ledger._opacus.errors import UnsupportedTrainingError
from epsilon_ledger._opacus.parameters import is_too_coarse


def check_trainer(trainer: Trainer, *, own_losses: bool) -> None:
    """Require a Trainer whose steps can be accounted for.

    Args:
        trainer: before its training.
        own_losses: whether the user gives the losses of the records.

    Raises:
        UnsupportedTrainingError: with what to do instead.
    """
    args = trainer.args
    if trainer.state.global_step > 0:
        _refuse("it has trained already, without noise. Make a new Trainer private before its first step")
    if isinstance(trainer.optimizer, DPOptimizer):
        _refuse("its optimizer is Opacus' already. Give the Trainer a plain one, or none")
    if args.fp16 or trainer.accelerator.scaler is not None:
        _refuse("fp16 scales the loss, and so the gradients that are clipped. Use bf16=True, or neither")
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled or args.torch_compile or args.n_gpu > 1:
        _refuse(
            "DeepSpeed, FSDP, torch.compile and DataParallel hide the gradients of single records. Use one process for "
            "each device (torchrun), or none of them"
        )
    if getattr(args, "activation_checkpointing", False) or getattr(args, "gradient_checkpointing", False):
        _refuse("activation checkpointing runs layers twice, which confuses Opacus. Use a smaller physical batch")
    if args.auto_find_batch_size:
        _refuse(
            "auto_find_batch_size trains again from the start with another batch. Choose per_device_train_batch_size"
        )
    if not own_losses and (trainer.compute_loss_func is not None or _overridden(trainer)):
        _refuse(
            "it computes its own loss of a batch, in which records may change each other's gradients. Give "
            "record_losses=..., a function from the model's outputs and inputs to one loss for each record"
        )
    if trainer.train_dataset is None or isinstance(trainer.train_dataset, IterableDataset):
        _refuse("Poisson samples need records that can be counted and looked up. Use a Dataset with __len__")


def check_model(model: nn.Module) -> None:
    """Require a model whose records do not change each other's gradients.

    Raises:
        UnsupportedTrainingError: with what to do instead.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):  # noqa: SLF001 - the base of all of them
            _refuse(
                f"{name} normalizes over the batch, so each record changes the gradients of all others, and it keeps "
                f"their mean. Replace it: opacus.validators.ModuleValidator.fix(model)"
            )
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and is_too_coarse(parameter):
            _refuse(f"{name} is {parameter.dtype}, too coarse for the noise. Train float32 parameters")


def check_hooks(parameters: list[nn.Parameter]) -> None:
    """Require that nothing but the optimizer's step moves the parameters.

    Raises:
        UnsupportedTrainingError: a layerwise optimizer moves them during the backward pass.
    """
    if any(
        getattr(parameter, "_post_accumulate_grad_hooks", None) or getattr(parameter, "_backward_hooks", None)
        for parameter in parameters
    ):
        _refuse("its optimizer moves parameters during the backward pass, without noise. Choose another `optim`")


def _overridden(trainer: Trainer) -> bool:
    kind: Any = type(trainer)
    return kind.compute_loss is not Trainer.compute_loss or kind.training_step is not Trainer.training_step


def _refuse(why: str) -> None:
    raise UnsupportedTrainingError(f"This Trainer cannot be made private: {why}.")
