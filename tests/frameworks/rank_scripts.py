"""Random scripts of a distributed training, by two processes that write the same one.

This module is the program of a rank: `python -m MODULE RANK STORE FIRST LAST` prints a JSON line of what broke.
"""
# ruff: noqa: ANN401 - scripts

import json
import sys
import warnings
from datetime import timedelta
from random import Random
from typing import Any, Final

import torch
import torch.distributed as dist
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel

from epsilon_ledger._opacus.guard import guard_of
from tests.frameworks import opacus_honest, opacus_hostile
from tests.frameworks.test_opacus_contract import GhostScript, OpacusScript, PerLayerScript
from tests.random_scripts import Action, Actions, Play, RandomScripts


class StoppedError(Exception):
    """Another rank has stopped."""


class RankScript(OpacusScript):
    """A rank's training: what it does to itself, it does alone; what stops it stops all."""

    def wrapped(self) -> Any:
        return DifferentiallyPrivateDistributedDataParallel(self.network)

    def payer(self) -> Any:
        return self.run if dist.get_rank() == 0 else None

    @property
    def outstanding(self) -> int:  # type: ignore[override]
        """Draws that were given up are charged with the next release."""
        source = guard_of(self.optimizer).source
        return 1 + (0 if source is None else source.owed)

    def draw(self) -> None:
        self.together(super().draw)

    @staticmethod
    def together(action: Any) -> None:
        """Do something on each rank, and stop if one of them was stopped."""
        error = None
        try:
            action()
        except Exception as found:  # noqa: BLE001 - the others must hear of each
            error = found
        stopped: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(stopped, None if error is None else str(error))
        if error is not None:
            raise error
        if any(stopped):
            raise StoppedError(next(filter(None, stopped)))

    def perform(self, action: Any) -> None:
        self.together(action)


class RankGhostScript(RankScript, GhostScript):
    pass


class RankPerLayerScript(RankScript, PerLayerScript):
    pass


def on_one_rank(action: Any) -> Any:
    """Do something on rank 1 alone, and then step on both."""

    def do(script: Any, dice: Random) -> None:
        script.together(lambda: action(script, dice) if dist.get_rank() else None)
        script.take()

    return do


def further_draw(script: Any, _: Random) -> None:
    OpacusScript.draw(script)


def other_norm(script: Any, _: Random) -> None:
    script.optimizer.max_grad_norm = 10 * script.bound
    if hasattr(script.optimizer, "max_grad_norms"):
        script.optimizer.max_grad_norms = [10 * norm for norm in script.optimizer.max_grad_norms]
    if hasattr(script.model, "get_clipping_coef"):
        script.model.max_grad_norm = 10 * script.bound


def unfreeze(script: Any, _: Random) -> None:
    script.add_parameters()


def further_loss(script: Any, _: Random) -> None:
    """Go backward by a penalty on one rank only."""
    opacus_honest.backward(script)
    if dist.get_rank():
        (script.network[0].weight * opacus_hostile.LARGE).sum().backward()
    script.optimizer.step()


def seed_ranks(script: Any, dice: Random) -> None:
    opacus_hostile.restore_states(script, dice)


WITHOUT: Final = {"evaluate elsewhere", "skip by data", "noise between pieces", "attach again"}
"""What is not the same on all ranks, or charged by one."""
HONEST: Final[Actions] = {name: action for name, action in opacus_honest.WITHIN.items() if name != "halves"} | {
    "new epoch": Action(opacus_honest.new_epoch, 2),
    "rate": Action(opacus_honest.move_rate),
    "give up": Action(opacus_honest.give_up, draws=True, left=1),
}
HOSTILE: Final[Actions] = {name: action for name, action in opacus_hostile.BROKEN.items() if name not in WITHOUT} | {
    "new epoch": Action(opacus_honest.new_epoch, 3),
    "further draw": Action(on_one_rank(further_draw), draws=True),
    "other norm": Action(on_one_rank(other_norm), 2, draws=True),
    "unfreeze": Action(on_one_rank(unfreeze), draws=True),
    "discard on one": Action(on_one_rank(opacus_honest.give_up), draws=True),
    "evaluate on one": Action(on_one_rank(lambda script, _: script.evaluate()), draws=True),
    "further loss on one": Action(further_loss, draws=True),
    "seed ranks": Action(seed_ranks, 2),
}


class Ranks(RandomScripts):
    script = RankScript
    seed = staticmethod(lambda: torch.manual_seed(7))
    honest, hostile = HONEST, HOSTILE
    processes = ("save", "restart", "resume", "add parameters")


class GhostRanks(Ranks):
    script = RankGhostScript


class PerLayerRanks(Ranks):
    script = RankPerLayerScript


KINDS: Final = (Ranks, GhostRanks, PerLayerRanks)


def broken(seed: int, *, honest: bool) -> str | None:
    """Play a script, and return what broke, as rank 0 sees it."""
    play = None
    try:
        play = Play(KINDS[seed % len(KINDS)], seed, honest=honest)
        play.play()
        if dist.get_rank() == 0:
            play.judge()
    except Exception as error:  # noqa: BLE001 - it is told
        return f"{'honest' if honest else 'hostile'} {seed}: {error!r}: {play and play.trace}"
    return None


def main(rank: int, store: str, first: int, last: int) -> list[str]:
    dist.init_process_group("gloo", f"file://{store}", timedelta(seconds=60), world_size=2, rank=rank)
    torch.set_num_threads(1)
    found = [broken(seed, honest=honest) for seed in range(first, last) for honest in (True, False)]
    dist.destroy_process_group()
    return [each for each in found if each]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))  # noqa: T201
