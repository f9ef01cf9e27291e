"""What goes wrong in random scripts of Opacus."""
# ruff: noqa: ANN401 - scripts

from random import Random
from typing import Any, Final

import torch
from opacus.data_loader import DPDataLoader
from torch import nn
from torch.utils.data import DataLoader

from epsilon_ledger.opacus import attach
from tests import random_scripts
from tests.frameworks.opacus_honest import (
    HONEST,
    RATES,
    WITHIN,
    backward,
    give_up,
    in_pieces,
    move_noise,
    move_norm,
    new_epoch,
)
from tests.random_scripts import Action, Actions
from tests.sdk.fake_ledger import BATCH

LARGE: Final = 1e5


def skip_by_data(script: Any, _: Random) -> None:
    """Leave out empty batches and those of the canary."""
    if len(script.batch[0]) and not script.batch[0].any():
        script.take()


def leave_by_data(script: Any, dice: Random) -> None:
    if script.batch[0].any():
        new_epoch(script, dice)
    else:
        script.take()


def further_loss(script: Any, dice: Random) -> None:
    """Go backward once more: by a penalty, or by the records themselves."""
    backward(script)
    weight = script.network[0].weight
    other = (weight * LARGE).sum() if dice.random() < 0.5 else script.model(script.batch[0]).sum() * LARGE
    other.backward()
    script.optimizer.step()


def summed_loss(script: Any, dice: Random) -> None:
    """Add something to the criterion's loss."""
    script.optimizer.zero_grad()
    found = script.model(script.batch[0])
    other = (script.network[0].weight * LARGE).sum() if dice.random() < 0.5 else found.sum() * LARGE
    (script.criterion(found, script.batch[1]) + other).backward()
    script.optimizer.step()


def scaled_loss(script: Any, _: Random) -> None:
    script.optimizer.zero_grad()
    (script.criterion(script.model(script.batch[0]), script.batch[1]) * LARGE).backward()
    script.optimizer.step()


def set_gradient(script: Any, dice: Random) -> None:
    """Set what the step would apply, by hand."""
    backward(script)
    parameter = script.network[dice.randrange(3)].weight
    name = dice.choice(("grad", "summed_grad"))
    setattr(parameter, name, torch.full_like(parameter, LARGE))
    script.optimizer.step()


def add_to_gradient(script: Any, dice: Random) -> None:
    backward(script)
    for parameter in script.network.parameters():
        if parameter.grad is not None:
            parameter.grad.add_(LARGE)
    script.optimizer.step()
    if dice.random() < 0.5:
        script.optimizer.step()


def without_zero(script: Any, dice: Random) -> None:
    """Go backward twice, or step again, without clearing."""
    for _ in range(dice.randrange(1, 3)):
        script.criterion(script.model(script.batch[0]), script.batch[1]).backward()
    script.optimizer.step()


def add_group(script: Any, dice: Random) -> None:
    """Let the optimizer move a layer that is not private, or a frozen one."""
    if dice.random() < 0.5:
        script.network[2].requires_grad_(requires_grad=True)
        script.optimizer.add_param_group({"params": [script.network[2].weight]})
    else:
        extra = nn.Parameter(torch.ones(1))
        script.optimizer.add_param_group({"params": [extra]})
        (extra * LARGE).sum().backward()


def freeze(script: Any, _: Random) -> None:
    script.network[1].requires_grad_(requires_grad=not script.network[1].weight.requires_grad)


def replace_parameter(script: Any, _: Random) -> None:
    """Put a new parameter in the place of one that is trained."""
    script.network[1].weight = nn.Parameter(script.network[1].weight.detach().clone())


def tie(script: Any, _: Random) -> None:
    script.network[2].weight = nn.Parameter(torch.zeros(1, 4))
    script.network.append(nn.Linear(4, 4, bias=False))
    script.network[1].weight = script.network[0].weight


def noise_within(script: Any, dice: Random) -> None:
    """Move noise or norm between the backward pass and the step."""
    backward(script)
    (move_noise if dice.random() < 0.5 else move_norm)(script, dice)
    if dice.random() < 0.3:
        script.optimizer.max_grad_norm = 10 * script.bound
    script.optimizer.step()


def noise_between_pieces(script: Any, dice: Random) -> None:
    x, y = script.batch
    half = len(x) // 2
    script.optimizer.signal_skip_step(do_skip=True)
    script.optimizer.signal_skip_step(do_skip=False)
    script.batch = x[:half], y[:half]
    script.take()
    move_noise(script, dice)
    move_norm(script, dice)
    script.batch = x[half:], y[half:]
    script.take()


def duplicate(script: Any, _: Random) -> None:
    """Step the records of the batch twice in one batch."""
    x, y = script.batch
    script.batch = torch.cat((x, x)), torch.cat((y, y))
    script.take()


def canary_everywhere(script: Any, _: Random) -> None:
    """Put the canary in the place of all others."""
    x, y = script.batch
    if len(x):
        script.batch = x[:1].expand_as(x).clone(), y[:1].expand_as(y).clone()
        script.batch = script.batch[0][: len(x) // 2], script.batch[1][: len(x) // 2]
    script.take()


def two_at_once(script: Any, _: Random) -> None:
    first = script.batch
    script.draw()
    script.batch = tuple(torch.cat(parts) for parts in zip(first, script.batch, strict=True))
    script.take()


def set_hook(script: Any, dice: Random) -> None:
    """Take the adapter's hook away, or hang another one there."""
    match dice.randrange(3):
        case 0:
            script.optimizer.step_hook = None
        case 1:
            script.optimizer.attach_step_hook(lambda _: None)
        case 2:
            script.optimizer.step_hook = lambda _: None


def no_hooks(script: Any, dice: Random) -> None:
    if dice.random() < 0.5:
        script.model.disable_hooks()
    else:
        script.model.enable_hooks()


def half_precision(script: Any, _: Random) -> None:
    """Train in bfloat16 for a while."""
    script.network.to(torch.bfloat16)
    try:
        script.batch = tuple(part.to(torch.bfloat16) for part in script.batch)
        script.take()
    finally:
        script.network.to(torch.float32)


def attach_elsewhere(script: Any, dice: Random) -> None:
    """Go on with another loader of the same data."""
    loader = DPDataLoader.from_data_loader(DataLoader(script.loader.dataset, BATCH))
    loader.batch_sampler.sample_rate = dice.choice(RATES)
    attach(script.optimizer, script.payer(), data_loader=loader, module=script.model)
    script.loader = loader
    new_epoch(script, dice)


def attach_again(script: Any, _: Random) -> None:
    attach(script.optimizer, script.payer(), data_loader=script.loader, module=script.model)


def signal(script: Any, dice: Random) -> None:
    script.optimizer.signal_skip_step(do_skip=dice.random() < 0.5)


def restore_states(script: Any, dice: Random) -> None:
    """Set the states of all generators that there are to earlier or seeded ones."""
    torch.manual_seed(7)
    for holder in (script.optimizer, script.loader.batch_sampler):
        generator = getattr(holder, "generator", None)
        if generator is None or dice.random() < 0.3:
            holder.generator = torch.Generator().manual_seed(7)
        else:
            generator.manual_seed(7)


def bare_step(script: Any, _: Random) -> None:
    script.optimizer.step()


def split_and_leave(script: Any, dice: Random) -> None:
    in_pieces(script, dice, leave=True)


BROKEN: Final[Actions] = random_scripts.HOSTILE | {
    **{name: action for name, action in WITHIN.items() if name not in random_scripts.HONEST},
    "skip by data": Action(skip_by_data, 2, draws=True),
    "further loss": Action(further_loss, draws=True),
    "summed loss": Action(summed_loss, draws=True),
    "scaled loss": Action(scaled_loss, draws=True),
    "set gradient": Action(set_gradient, draws=True),
    "add to gradient": Action(add_to_gradient, draws=True),
    "without zero": Action(without_zero, draws=True),
    "add group": Action(add_group),
    "freeze": Action(freeze),
    "replace": Action(replace_parameter),
    "tie": Action(tie),
    "noise within": Action(noise_within, draws=True),
    "noise between pieces": Action(noise_between_pieces, draws=True),
    "duplicate": Action(duplicate, draws=True),
    "canary everywhere": Action(canary_everywhere, draws=True),
    "hook": Action(set_hook),
    "no hooks": Action(no_hooks),
    "half precision": Action(half_precision, draws=True),
    "attach again": Action(attach_again),
    "signal": Action(signal),
    "states": Action(restore_states, 2),
    "bare step": Action(bare_step),
    "discard": Action(give_up, 3),
}
"""Hostile, and within a loop that is not the script's."""
HOSTILE: Final[Actions] = BROKEN | {
    **{name: action for name, action in HONEST.items() if name not in WITHIN},
    "leave by data": Action(leave_by_data, draws=True),
    "two at once": Action(two_at_once, draws=True),
    "split and leave": Action(split_and_leave),
    "begin": Action(new_epoch, 3),
    "attach elsewhere": Action(attach_elsewhere, 2),
}
