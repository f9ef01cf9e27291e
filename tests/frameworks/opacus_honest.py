"""What random scripts of Opacus may do."""
# ruff: noqa: ANN401 - scripts

import copy
from itertools import islice
from random import Random
from typing import Any, Final

import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch.utils.data import DataLoader

from epsilon_ledger.opacus import discard_batch
from tests import random_scripts
from tests.frameworks.test_opacus_canaries import FarLoss
from tests.random_scripts import Action, Actions

RATES: Final = (1.0, 0.5, 1 / 64)


def new_epoch(script: Any, _: Random) -> None:
    """Leave an iteration after a step, and begin another one."""
    script.batches = iter(())


def break_at_limit(script: Any, dice: Random) -> None:
    """Leave a loop by the number of steps, before a step."""
    new_epoch(script, dice)
    limit = dice.randrange(1, 4)
    for number, batch in enumerate(observed(script)):
        script.batch = batch
        if number == limit:
            break
        script.take()


def slice_of_epoch(script: Any, dice: Random) -> None:
    new_epoch(script, dice)
    for batch in islice(observed(script), dice.randrange(1, 4)):
        script.batch = batch
        script.take()


def observed(script: Any) -> Any:
    """Iterate the loader, and count its draws."""
    for batch in script.loader:
        script.drawn += 1
        script.rate = script.loader.batch_sampler.sample_rate
        yield batch


def in_pieces(script: Any, dice: Random, *, steps: int | None = None, leave: bool = False) -> None:
    """Step batches with a BatchMemoryManager."""
    new_epoch(script, dice)
    size, before = dice.choice((1, 20, 64)), len(script.releases)
    wanted = before + (steps or dice.randrange(1, 3))
    with BatchMemoryManager(
        data_loader=script.loader, max_physical_batch_size=size, optimizer=script.optimizer
    ) as split:
        for number, script.batch in enumerate(split):
            script.rate = script.loader.batch_sampler.sample_rate
            if leave and number == 1:
                break
            script.take()
            if len(script.releases) == wanted:
                break
    script.drawn += len(script.releases) - before


def in_halves(script: Any, _: Random) -> None:
    """Step the two halves of a batch, as scripts without a BatchMemoryManager do."""
    x, y = script.batch
    half = len(x) // 2
    script.optimizer.signal_skip_step(do_skip=True)
    script.optimizer.signal_skip_step(do_skip=False)
    for script.batch in ((x[:half], y[:half]), (x[half:], y[half:])):
        script.take()


def peek(script: Any, _: Random) -> None:
    """Look at a batch."""
    with torch.no_grad():
        assert next(iter(script.loader))[0].ndim == 2
    script.take()


def evaluate_with_gradients(script: Any, _: Random) -> None:
    """Evaluate within the loop in evaluation mode, without `torch.no_grad()`."""
    script.take()
    script.model.eval()
    for x, y in script.loader:
        FarLoss()(script.model(x), y)
    script.model.train()


def evaluate_in_training_mode(script: Any, _: Random) -> None:
    with torch.no_grad():
        for x, y in islice(script.loader, 2):
            FarLoss()(script.model(x), y)
    script.take()


def evaluate_elsewhere(script: Any, _: Random) -> None:
    """Evaluate on other data."""
    script.model.eval()
    with torch.no_grad():
        for x, _y in DataLoader(copy.copy(script.loader.dataset), 32):
            script.model(x)
    script.model.train()
    script.take()


def zero_before_and_after(script: Any, dice: Random) -> None:
    script.optimizer.zero_grad(set_to_none=dice.random() < 0.5)
    script.take()
    script.optimizer.zero_grad(set_to_none=dice.random() < 0.5)


def with_closure(script: Any, _: Random) -> None:
    def closure() -> Any:
        script.optimizer.zero_grad()
        loss = script.criterion(script.model(script.batch[0]), script.batch[1])
        loss.backward()
        return loss

    script.optimizer.step(closure)


def log_norms(script: Any, _: Random) -> None:
    """Log norms of gradients before and after a step."""
    backward(script)
    [float(each.grad_sample.norm()) for each in script.optimizer.params if each.grad_sample is not None]
    script.optimizer.step()
    [float(each.grad.norm()) for each in script.optimizer.params]


def backward(script: Any) -> None:
    script.optimizer.zero_grad()
    script.criterion(script.model(script.batch[0]), script.batch[1]).backward()


def schedule_learning_rate(script: Any, _: Random) -> None:
    if not hasattr(script, "scheduler"):
        script.scheduler = torch.optim.lr_scheduler.ExponentialLR(script.optimizer, 0.9)
    script.take()
    script.scheduler.step()


def move_noise(script: Any, dice: Random) -> None:
    script.optimizer.noise_multiplier = dice.choice((0.5, 1.0, 2.0)) * script.noise_multiplier


def move_norm(script: Any, dice: Random) -> None:
    if type(script.optimizer).__name__ == "DPOptimizer":
        script.optimizer.max_grad_norm = dice.choice((0.5, 1.0, 2.0)) * script.bound


def move_rate(script: Any, dice: Random) -> None:
    if not script.loader.num_workers:  # which draw ahead
        script.loader.batch_sampler.sample_rate = dice.choice(RATES)


def keep_weights(script: Any, _: Random) -> None:
    """Keep the best weights, by a copy, and load them."""
    script.network.load_state_dict(copy.deepcopy(script.network.state_dict()))
    script.optimizer.load_state_dict(copy.deepcopy(script.optimizer.state_dict()))


def copy_model(script: Any, _: Random) -> None:
    """Copy the model, as averages of weights do."""
    copied = copy.deepcopy(script.model)
    copied.eval()
    with torch.no_grad():
        copied(script.batch[0])
    script.take()


def give_up(script: Any, _: Random) -> None:
    discard_batch(script.optimizer)


def reseed(*_: Any) -> None:
    torch.manual_seed(7)


WITHIN: Final[Actions] = random_scripts.HONEST | {
    "peek": Action(peek, draws=True),
    "evaluate with gradients": Action(evaluate_with_gradients, draws=True),
    "evaluate in training mode": Action(evaluate_in_training_mode, draws=True),
    "evaluate elsewhere": Action(evaluate_elsewhere, draws=True),
    "zero": Action(zero_before_and_after, draws=True),
    "closure": Action(with_closure, draws=True),
    "log norms": Action(log_norms, draws=True),
    "halves": Action(in_halves, draws=True),
    "learning rate": Action(schedule_learning_rate, draws=True),
    "noise": Action(move_noise),
    "norm": Action(move_norm),
    "best weights": Action(keep_weights),
    "copy": Action(copy_model, draws=True),
    "seed": Action(reseed),
}
"""Honest, and within a loop that is not the script's."""
HONEST: Final[Actions] = WITHIN | {
    "new epoch": Action(new_epoch, 2),
    "break": Action(break_at_limit, left=1),
    "slice": Action(slice_of_epoch),
    "pieces": Action(in_pieces, 2),
    "rate": Action(move_rate),
    "give up": Action(give_up, draws=True, left=1),
}
