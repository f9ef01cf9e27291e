"""Distributed training: all ranks step together, and rank 0 authorizes."""

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple

import torch
from opacus.optimizers import DPOptimizer, FSDPOptimizerFastGradientClipping

from epsilon_ledger import LedgerError
from epsilon_ledger._opacus.errors import UnsupportedTrainingError
from epsilon_ledger._opacus.samples import Draw, comparable, require_distinct


class _Verdict(NamedTuple):
    error: bytes | None
    place: tuple[int, int] | None
    sampling_probability: float
    records: list[Any]
    needed: bool
    owed: int
    scale: tuple[float, ...]


def workers(optimizer: DPOptimizer) -> int:
    """Return the number of processes that step together."""
    return int(getattr(optimizer, "world_size", 1))


def agree(optimizer: DPOptimizer, error: Exception | None, draw: Draw | None, *, needed: bool, owed: int) -> int:
    """Let a step proceed if all ranks agree, clip alike, and have parts of one draw, each record in one of them.

    Args:
        optimizer: of this rank.
        error: this rank's objection, or None.
        draw: of this rank's part; it gets the largest probability of all ranks.
        needed: whether each rank must know its draw.
        owed: number of draws that this rank gave up and nobody has charged.

    Returns:
        The largest number owed, on rank 0, which charges for all; otherwise 0.

    Raises:
        UnsupportedTrainingError: on all ranks.
        ValueError: a norm is not in (0, inf), on all ranks.
    """
    own = _Verdict(
        None if error is None else pickle_error(error),
        None if draw is None else draw.place,
        0.0 if draw is None else draw.sampling_probability or 0.0,
        [] if draw is None else [comparable(record) for record in draw.records],
        needed,
        owed,
        _scale(optimizer),
    )
    verdicts: list[_Verdict] = [own] * workers(optimizer)
    torch.distributed.all_gather_object(verdicts, own)
    if error is not None:
        raise error
    for verdict in verdicts:
        if verdict.error is not None:
            raise pickle.loads(verdict.error)  # noqa: S301 - from a rank of this very training
    places = [verdict.place for verdict in verdicts]
    if any(verdict.needed for verdict in verdicts) and (None in places or len(set(places)) > 1):
        raise UnsupportedTrainingError(
            f"The ranks step different draws (epoch and number of each: {places}). Attach the optimizer of every rank "
            f"with its own data_loader, and let all ranks step each batch that they are handed, the empty ones too."
        )
    scales = [verdict.scale for verdict in verdicts]
    if len(set(scales)) > 1:
        raise UnsupportedTrainingError(
            f"The ranks clip to different norms, or add different noise (of each: {scales}), but the noise of a step "
            f"and its charge are those of rank 0. Move norm and noise on all ranks by the same schedule."
        )
    require_distinct(chain.from_iterable(verdict.records for verdict in verdicts), "The ranks together drew")
    if draw is not None and draw.sampling_probability is not None:
        draw.sampling_probability = max(verdict.sampling_probability for verdict in verdicts)
    return 0 if optimizer.rank > 0 else max(verdict.owed for verdict in verdicts)


def _scale(optimizer: DPOptimizer) -> tuple[float, ...]:
    """Return what must be equal on all ranks: the clipping norms, and the noise where each rank adds its own."""
    norms = tuple(map(float, getattr(optimizer, "max_grad_norms", ())))
    noise = (float(optimizer.noise_multiplier),) if type(optimizer) is FSDPOptimizerFastGradientClipping else ()
    return (float(optimizer.max_grad_norm), *norms, *noise)


def on_any_rank(optimizer: DPOptimizer, found: bool) -> bool:  # noqa: FBT001 - what is reduced
    """Return whether something was found on any rank."""
    flag = torch.tensor(float(found), device=optimizer.params[0].device)
    torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
    return bool(flag)


@contextmanager
def broadcast_result() -> Iterator[None]:
    """Broadcast to the other ranks, which wait for it, with which error a block of rank 0 ends, or None."""
    error: BaseException | None = None
    try:
        yield
    except BaseException as found:
        error = found
        raise
    finally:
        torch.distributed.broadcast_object_list([None if error is None else pickle_error(error)], src=0)


def receive_result() -> None:
    """Wait for rank 0's result.

    Raises:
        LedgerError: the step was not admitted; or another error of rank 0.
    """
    result: list[bytes | None] = [None]
    torch.distributed.broadcast_object_list(result, src=0)
    if result[0] is not None:
        raise pickle.loads(result[0])  # noqa: S301 - from rank 0 of this very training


def computed_by_rank_0(compute: Callable[[], float]) -> float:
    """Compute a number on rank 0, for all ranks; its errors are raised on all of them."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return compute()
    if torch.distributed.get_rank() > 0:
        receive_result()
        value: list[float] = [0.0]
        torch.distributed.broadcast_object_list(value, src=0)
        return value[0]
    with broadcast_result():
        found = compute()
    torch.distributed.broadcast_object_list([found], src=0)
    return found


def pickle_error(error: BaseException) -> bytes:
    """Pickle an error for the other ranks, or its message if it cannot be pickled."""
    try:
        return pickle.dumps(error)
    except Exception:  # noqa: BLE001 - the other ranks must receive every error
        return pickle.dumps(LedgerError(f"{type(error).__name__} on rank 0: {error}"))
