"""One loss for each record.

A model of Transformers divides the loss of a batch by its number of tokens. So a record would change the gradients of
all others before they are clipped, and the clipping norm would not bound what it changes. Here each record's loss
depends on that record alone.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import nn
from transformers.models.auto import modeling_auto

from epsilon_ledger._opacus.errors import UnsupportedTrainingError

RecordLosses = Callable[[Any, Mapping[str, Any]], torch.Tensor]
"""From a model's outputs and inputs to the loss of each record, (n_records,)."""

IGNORED: Final = -100
"""The label of a token that is no target, as in Transformers."""


def record_losses_of(model: nn.Module, label_smoothing: float) -> RecordLosses:
    """Choose the losses of a model by its class.

    Args:
        model: of Transformers, without adapters.
        label_smoothing: in [0, 1).

    Raises:
        UnsupportedTrainingError: the losses of its records are not known here.
    """
    name = type(model).__name__
    if name in _SHIFTED:
        return lambda outputs, inputs: token_losses(
            outputs.logits[:, :-1], inputs["labels"][:, 1:], label_smoothing=label_smoothing
        )
    if name in _ALIGNED:
        return lambda outputs, inputs: token_losses(outputs.logits, inputs["labels"], label_smoothing=label_smoothing)
    if name in _CLASSIFYING:
        kind = getattr(model, "config", None)
        return lambda outputs, inputs: _class_losses(outputs.logits, inputs["labels"], kind, label_smoothing)
    raise UnsupportedTrainingError(
        f"The loss of each record of {name} is not known here, and the model's own loss is one of the whole batch, in "
        f"which each record changes the gradients of all others. Give record_losses=..., a function from the model's "
        f"outputs and inputs to one loss for each record."
    )


def token_losses(logits: torch.Tensor, labels: torch.Tensor, *, label_smoothing: float = 0.0) -> torch.Tensor:
    """Average the cross entropy over each record's own target tokens.

    Args:
        logits: (n_records, n_tokens, n_classes).
        labels: (n_records, n_tokens), -100 where there is no target.
        label_smoothing: in [0, 1).

    Returns:
        (n_records,); 0 for a record without a target.
    """
    tokens = nn.functional.cross_entropy(
        logits.flatten(0, 1).float(),
        labels.flatten(),
        ignore_index=IGNORED,
        reduction="none",
        label_smoothing=label_smoothing,
    )
    targets = labels.ne(IGNORED).sum(dim=1).clamp(min=1)
    return tokens.view(labels.shape).sum(dim=1) / targets


def require_separate_losses(record_losses: RecordLosses, outputs: Any, inputs: Mapping[str, Any]) -> None:  # noqa: ANN401 - of any model
    """Require that the loss of the first record depends on no other record's outputs, as in-batch negatives do.

    Args:
        record_losses: to check.
        outputs: of the model, for several records.
        inputs: of the model.

    Raises:
        UnsupportedTrainingError: it does, so that clipping each record's gradient does not bound its share.
    """
    # Of copies, so that nothing flows back into the model and its hooks.
    copies: list[torch.Tensor] = []
    first = record_losses(_copied(outputs, copies), inputs)[0]
    if not first.requires_grad:
        return
    gradients = torch.autograd.grad(first, copies, allow_unused=True)
    if any(each is not None and each.ndim and each[1:].nan_to_num().count_nonzero() for each in gradients):
        raise UnsupportedTrainingError(
            "The loss of a record depends on other records of its batch, as with in-batch negatives (InfoNCE) or a "
            "mean over the batch, so that clipping its gradient does not bound what it changes. Give record_losses=... "
            "of each record alone: put its negatives into the record."
        )


def _copied(outputs: Any, copies: list[torch.Tensor]) -> Any:  # noqa: ANN401 - of any model
    """Copy the tensors of a model's outputs, and list those copies that can have gradients."""
    if isinstance(outputs, torch.Tensor) and outputs.is_floating_point():
        copies.append(outputs.detach().requires_grad_())
        return copies[-1]
    if isinstance(outputs, Mapping):
        kind: Any = type(outputs)
        return kind(**{name: _copied(each, copies) for name, each in outputs.items()})
    if type(outputs) in {tuple, list}:
        return [_copied(each, copies) for each in outputs]
    return outputs


def _class_losses(
    logits: torch.Tensor,
    labels: torch.Tensor,
    config: Any,  # noqa: ANN401 - of any model
    label_smoothing: float,
) -> torch.Tensor:
    """Compute the losses of a classification or regression, of whichever kind Transformers takes it for."""
    kind = config.problem_type
    if kind == "regression" or (kind is None and config.num_labels == 1):
        return (logits.float() - labels.view(logits.shape)).square().flatten(1).mean(dim=1)
    if kind == "single_label_classification" or (kind is None and not labels.is_floating_point()):
        return token_losses(logits[:, None], labels.view(-1, 1), label_smoothing=label_smoothing)
    return nn.functional.binary_cross_entropy_with_logits(logits.float(), labels.float(), reduction="none").mean(dim=1)


def _names(*tables: Mapping[str, str | tuple[str, ...]]) -> frozenset[str]:
    classes = [name for table in tables for name in table.values()]
    return frozenset(name for names in classes for name in ((names,) if isinstance(names, str) else names))


_SHIFTED: Final = _names(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
_ALIGNED: Final = _names(
    modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
)
_CLASSIFYING: Final = _names(
    modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES,
)
