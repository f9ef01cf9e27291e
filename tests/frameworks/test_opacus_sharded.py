"""Each distributed optimizer of Opacus, FSDP's too, by two processes: one charge, and nothing left after a refusal.

This module is also the program of a rank: `python -m MODULE RANK STORE` prints a JSON line of what came of it.
"""

import json
import re
import sys
import warnings
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from opacus import PrivacyEngine
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.utils.fsdp_utils import FSDP2Wrapper
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from epsilon_ledger import LedgerError, gaussian, poisson_sampled
from epsilon_ledger.opacus import attach, discard_batch
from tests.frameworks.ranks import run_ranks
from tests.sdk.fake_ledger import LEAST_NOISE, FakeRun

MODULE = "tests.frameworks.test_opacus_sharded"
RECORDS, BATCH, CAPACITY = 64, 16, 2
KINDS: dict[str, dict[str, Any]] = {
    "flat": {},
    "per layer": {"clipping": "per_layer", "max_grad_norm": [1.0] * 4},
    "ghost": {"grad_sample_mode": "ghost"},
    "fsdp": {"grad_sample_mode": "ghost_fsdp"},
    "fsdp without wrapper": {"grad_sample_mode": "ghost_fsdp", "wrap_model": False},
}


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def loader_of(records: int, **terms: Any) -> DataLoader[Any]:  # noqa: ANN401 - torch's
    return DataLoader(TensorDataset(torch.randn(records, 4)), BATCH, **terms)


class Training:
    """A distributed training with the fake run on rank 0."""

    def __init__(self, rank: int, model: nn.Module, **terms: Any) -> None:  # noqa: ANN401 - Opacus' arguments
        self.run = FakeRun(capacity=CAPACITY, neighboring_relation="replace_one") if rank == 0 else None
        self.module = model
        engine = PrivacyEngine()
        attach(engine, self.run, sampling_probability=None if terms.get("poisson_sampling", True) else 1.0)
        torch.manual_seed(2)
        made = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            criterion=nn.CrossEntropyLoss(),
            **{"noise_multiplier": 1.0, "max_grad_norm": 1.0, "data_loader": loader_of(RECORDS)} | terms,
        )
        made_module, self.optimizer = made[:2]
        self.model = made_module if terms.get("wrap_model", True) else model
        self.criterion = made[2] if len(made) == 4 else nn.CrossEntropyLoss()
        self.loader = made[-1]
        torch.manual_seed(3 + rank)

    def step(self, batch: torch.Tensor) -> str | None:
        """Take a step; return what stopped it."""
        try:
            self.optimizer.zero_grad()
            self.criterion(self.model(batch), torch.zeros(len(batch), dtype=torch.long)).backward()
            self.optimizer.step()
        except LedgerError as error:
            return f"{type(error).__name__}: {error}"
        return None

    def steps(self, count: int) -> str | None:
        """Take steps; return what stopped them."""
        batches = zip(self.loader, range(count), strict=False)
        return next((stopped for (batch,), _ in batches if (stopped := self.step(batch))), None)

    def parameters(self) -> list[Any]:
        return [whole(parameter.detach()).tolist() for parameter in self.optimizer.params]

    def left(self) -> list[str]:
        """What of a batch is kept: names of attributes that are not None."""
        names = ("grad", "grad_sample", "summed_grad", "_norm_sample", "_current_grad_sample")
        found = [name for p in self.optimizer.params for name in names if getattr(p, name, None) is not None]
        states = getattr(self.optimizer, "grad_state", {}).values()
        found += ["grad_state" for state in states if state["summed_grad"] is not None]
        return found + ["norm_sample" for part in self.module.modules() if hasattr(part, "norm_sample")]


def whole(tensor: Any) -> torch.Tensor:  # noqa: ANN401 - of one rank or sharded
    gathered: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return gathered


def wrapped(kind: str) -> nn.Module:
    model: nn.Module = FSDP2Wrapper(net()) if "fsdp" in kind else DifferentiallyPrivateDistributedDataParallel(net())
    return model


def outcome(rank: int, kind: str) -> dict[str, Any]:
    """What was asked, what stopped it, and what a refusal left behind."""
    training = Training(rank, wrapped(kind), **KINDS[kind])
    assert training.steps(CAPACITY) is None
    before = training.parameters()
    stopped = training.steps(1)
    return {
        "optimizer": type(training.optimizer).__name__,
        "asked": training.run.asked if training.run else None,
        "stopped": stopped,
        "unchanged": before == training.parameters(),
        "parameters": before,
        "left": training.left(),
    }


def released_sum(rank: int, kind: str) -> list[Any]:
    """The gradient of one batch of all records, with so little noise that it shows the sum alone."""
    model = wrapped(kind)
    training = Training(rank, model, **KINDS[kind] | {"noise_multiplier": 1e-3, "max_grad_norm": 1e-2})
    before = training.parameters()
    training.loader.batch_sampler.sample_rate = 1.0
    assert training.steps(1) is None
    return [(torch.tensor(a) - torch.tensor(b)).tolist() for a, b in zip(before, training.parameters(), strict=True)]


def refusals(rank: int) -> dict[str, str | None]:
    """What stops FSDP trainings whose noise would not fit."""
    found: dict[str, str | None] = {}
    factor = FSDP2Wrapper(net())
    training = Training(rank, factor, **KINDS["fsdp"])
    for part in factor.children():
        if hasattr(part, "set_gradient_divide_factor"):
            part.set_gradient_divide_factor(1.0)
    # gloo cannot divide by a factor, so that the backward pass before the check would fail.
    try:
        training.model.get_clipping_coef()
    except LedgerError as error:
        found["factor"] = f"{type(error).__name__}: {error}"
    late = FSDP2Wrapper(net())
    training = Training(rank, late, **KINDS["fsdp"])
    late.set_requires_gradient_sync(False)
    found["sync"] = training.steps(1)
    # Two copies of each shard: HSDP over two ranks that shard nothing.
    copies = net()
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    for part in copies:
        if list(part.parameters()):
            fully_shard(part, mesh=mesh)
    training = Training(rank, fully_shard(copies, mesh=mesh), **KINDS["fsdp"])
    found["copies"] = training.steps(1)
    return found


def nan_on_one_rank(rank: int) -> list[str]:
    """What stops each step of an epoch, where every record of rank 1 has a NaN."""
    training = Training(rank, wrapped("flat"))
    if rank == 1:
        training.loader.dataset.tensors[0][:] = torch.nan
    stops = [training.steps(1) for _ in range(4)]
    return [(stop or "").partition(":")[0] for stop in stops]


def one_rank_ahead(rank: int) -> str | None:
    """Let one rank step the next batch, and the other one that after it."""
    training = Training(rank, wrapped("flat"))
    batches = iter(training.loader)
    (batch,) = next(batches)
    if rank:
        discard_batch(training.optimizer)
        (batch,) = next(batches)
    return training.step(batch)


def sparse(rank: int) -> list[int]:
    """How many records each batch of a rank has, where most have none."""
    training = Training(rank, wrapped("flat"))
    training.loader.batch_sampler.sample_rate = 2**-12
    with torch.no_grad():
        return [len(batch) for (batch,) in training.loader]


def seeded_equally(rank: int) -> tuple[list[list[int]], list[int]]:
    """The places within a rank's records that it draws, and its noise, where all ranks have one seed."""
    torch.manual_seed(0)
    loader = loader_of(RECORDS, generator=torch.Generator().manual_seed(0))
    training = Training(rank, wrapped("flat"), data_loader=loader, noise_generator=torch.Generator())
    sampler = training.loader.batch_sampler
    sampler.shuffle = False  # rank 0 has the even records
    with torch.no_grad():  # nothing is trained on them
        places = [[index // 2 for index in indices] for indices in sampler]
    return places, training.optimizer.generator.get_state().tolist()


def same_records(rank: int, **terms: Any) -> str | None:  # noqa: ANN401 - torch's
    """Let a record be in the parts of both ranks."""
    data = TensorDataset(torch.randn(BATCH + 1, 4))
    loader = DataLoader(data, BATCH, **{name: make(data) for name, make in terms.items()})
    return Training(rank, wrapped("flat"), data_loader=loader, poisson_sampling=False).steps(1)


def twice_on_one_rank(rank: int) -> str | None:
    """Let one rank step each of its records twice."""
    training = Training(rank, wrapped("flat"))
    (batch,) = next(iter(training.loader))
    return training.step(torch.cat([batch] * (1 + rank)))


def other_norm(rank: int, kind: str) -> str | None:
    """Let rank 1 clip to another norm than rank 0, whose noise is charged."""
    training = Training(rank, wrapped(kind), **KINDS[kind])
    training.optimizer.max_grad_norm *= 1 + rank
    if kind == "ghost":
        training.model.max_grad_norm *= 1 + rank
    return training.steps(1)


def calibrated(rank: int) -> tuple[float, str]:
    """The noise that an engine of this rank finds, and what a run of its own is told."""
    engine, model, run = PrivacyEngine(accountant="rdp"), wrapped("flat"), FakeRun() if rank == 0 else None
    attach(engine, run, public_size=RECORDS)
    _, optimizer, _ = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(torch.randn(RECORDS, 4)), 8),
        target_epsilon=2.0,
        target_delta=1e-5,
        epochs=1,
        max_grad_norm=1.0,
    )
    previews = [] if run is None else [each for each in run.ledger.requests if "dry_run" in each.url.params]
    assert all(json.loads(each.content)["count"] == RECORDS // 8 for each in previews)
    said = ""
    if rank == 1:
        try:
            attach(optimizer, FakeRun())
        except ValueError as error:
            said = str(error)
    return float(optimizer.noise_multiplier), said


def main(rank: int, store: str) -> dict[str, Any]:
    dist.init_process_group("gloo", f"file://{store}", timedelta(seconds=120), world_size=2, rank=rank)
    torch.set_num_threads(1)
    answer: dict[str, Any] = {kind: outcome(rank, kind) for kind in KINDS}
    answer["sums"] = {kind: released_sum(rank, kind) for kind in ("ghost", "fsdp")}
    answer |= {"refusals": refusals(rank), "not finite": nan_on_one_rank(rank)}
    answer |= {"ahead": one_rank_ahead(rank), "calibrated": calibrated(rank)}
    answer |= {"sparse": sparse(rank), "twice": twice_on_one_rank(rank), "seeded": seeded_equally(rank)}
    answer |= {"norms": [other_norm(rank, kind) for kind in ("flat", "ghost")]}
    answer |= {"whole": same_records(rank), "padded": same_records(rank, sampler=DistributedSampler)}
    dist.destroy_process_group()
    return answer


OPTIMIZERS = {
    "flat": "DistributedDPOptimizer",
    "per layer": "SimpleDistributedPerLayerOptimizer",
    "ghost": "DistributedDPOptimizerFastGradientClipping",
    "fsdp": "FSDPOptimizerFastGradientClipping",
    "fsdp without wrapper": "FSDPOptimizerFastGradientClipping",
}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks(MODULE, tmp_path_factory.mktemp("gloo"))


@pytest.mark.parametrize("kind", KINDS)
def test_rank_0_charges_step_of_all_and_none_moves_or_keeps_batch_after_refusal(
    ranks: list[dict[str, Any]], kind: str
) -> None:
    assert [rank[kind]["optimizer"] for rank in ranks] == [OPTIMIZERS[kind]] * 2
    assert ranks[0][kind]["asked"] == [poisson_sampled(BATCH / RECORDS, gaussian(1.0))] * CAPACITY
    assert ranks[0][kind]["parameters"] == ranks[1][kind]["parameters"]
    for rank in ranks:
        assert rank[kind]["stopped"].startswith("BudgetExceededError")
        assert rank[kind]["unchanged"]
        assert rank[kind]["left"] == []


def test_sharded_noise_is_scaled_for_what_is_released(ranks: list[dict[str, Any]]) -> None:
    # The same records and parameters: what moves by FSDP must move as without it, where the noise is known to fit.
    for ghost, fsdp in zip(ranks[0]["sums"]["ghost"], ranks[0]["sums"]["fsdp"], strict=True):
        assert torch.tensor(fsdp).norm() > 0
        # Noise of 1e-3 clipping norms on a sum of up to 64 of them.
        assert torch.tensor(fsdp) == pytest.approx(torch.tensor(ghost), abs=2e-6)


WHY = {"factor": "set_gradient_divide_factor", "sync": "set_requires_gradient_sync", "copies": "not sharded over"}


def test_sharding_that_noise_does_not_fit_is_refused(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        for how, why in WHY.items():
            assert rank["refusals"][how].startswith("UnsupportedTrainingError")
            assert why in rank["refusals"][how]


def test_rank_with_nan_or_another_batch_stops_all(ranks: list[dict[str, Any]]) -> None:
    first, second = (rank["not finite"] for rank in ranks)
    assert first == second
    # A part without records has no NaN: then the ledger is asked.
    assert first.count("UnsupportedTrainingError") >= 2
    for rank in ranks:
        assert rank["ahead"].startswith("UnsupportedTrainingError")
        assert rank["twice"] == ranks[1]["twice"]
        assert "gradient is of" in rank["twice"]


def test_ranks_with_one_seed_draw_other_places_and_noise(ranks: list[dict[str, Any]]) -> None:
    (places, noise), (other_places, other_noise) = (rank["seeded"] for rank in ranks)
    assert not [place for place, other in zip(places, other_places, strict=True) if place == other and place]
    assert noise != other_noise


def test_rank_that_clips_to_another_norm_stops_all(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        for stopped in rank["norms"]:
            assert stopped.startswith("UnsupportedTrainingError: The ranks clip to different norms")


@pytest.mark.parametrize("how", ["whole", "padded"])
def test_record_in_parts_of_both_ranks_is_refused(ranks: list[dict[str, Any]], how: str) -> None:
    for rank in ranks:
        assert re.match(r"UnsupportedTrainingError: The ranks together drew record \d+ 2 times", rank[how])


def test_rank_gets_its_part_of_each_draw_even_if_it_is_empty(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert len(rank["sparse"]) == RECORDS // BATCH
        assert 0 in rank["sparse"]


def test_all_ranks_get_noise_of_rank_0_and_no_other_has_run(ranks: list[dict[str, Any]]) -> None:
    noise = [rank["calibrated"][0] for rank in ranks]
    assert noise[0] == noise[1] == pytest.approx(LEAST_NOISE, rel=1e-3)
    assert ranks[1]["calibrated"][1] == "Rank 0 asks for all: on rank 1 give None for the run."


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(main(int(sys.argv[1]), sys.argv[2])))  # noqa: T201
