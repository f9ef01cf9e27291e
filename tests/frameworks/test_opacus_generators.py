"""Noise and samples that nobody can repeat, and samplers whose samples are not what their charge assumes."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from epsilon_ledger import gaussian
from epsilon_ledger.opacus import attach
from tests.frameworks.conftest import ADAPTIVE, STEP, Q, Training, make_private, new_engine, small_loader
from tests.frameworks.test_opacus_samples import KINDS, refuses
from tests.sdk.fake_ledger import BATCH, STEPS_PER_EPOCH, FakeRun, N


class OwnPoisson(Sampler[list[int]]):
    """A sampler of Poisson samples that this adapter does not know.

    Args:
        generator: None draws from torch's default one.
    """

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.generator = generator

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(STEPS_PER_EPOCH):
            yield (torch.rand(N, generator=self.generator) < Q).nonzero().flatten().tolist()

    def __len__(self) -> int:
        return STEPS_PER_EPOCH


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(42)


def seeded_loader(**terms: Any) -> DataLoader[Any]:  # noqa: ANN401 - torch's
    x = torch.arange(N * 4.0).reshape(N, 4)
    return DataLoader(TensorDataset(x, torch.zeros(N, dtype=torch.long)), **terms)


def samples(**terms: Any) -> list[list[int]]:  # noqa: ANN401 - of the loader
    """Draw an epoch of samples in a script that seeds all that it can."""
    torch.manual_seed(42)
    stated = Q if "batch_sampler" in terms else None
    engine = new_engine()
    attach(engine, FakeRun(), sampling_probability=stated)
    loader = seeded_loader(**terms or {"batch_size": BATCH})
    training = make_private(engine, loader, poisson_sampling=stated is None)
    drawn = []
    for x, y in training.loader:
        drawn.append((x[:, 0] / 4).int().tolist())
        training.step((x, y))
    return drawn


LOADERS: dict[str, Any] = {
    "seeded torch": dict,
    "seeded loader": lambda: {"batch_size": BATCH, "generator": seeded()},
    "unknown sampler": lambda: {"batch_sampler": OwnPoisson()},
    "unknown sampler with a generator": lambda: {"batch_sampler": OwnPoisson(seeded())},
}


@pytest.mark.parametrize("name", LOADERS)
def test_equal_seeds_give_different_samples(name: str) -> None:
    first, second = (samples(**LOADERS[name]()) for _ in range(2))
    assert not [sample for sample in first if sample in second and sample]


@pytest.mark.parametrize("kind", [*KINDS, "adaptive"])
def test_state_that_was_seeded_or_brought_back_is_never_used(run: FakeRun, kind: str) -> None:
    engine = new_engine()
    attach(engine, run)
    training = make_private(engine, noise_generator=seeded(), **(KINDS | {"adaptive": ADAPTIVE})[kind])
    optimizer, sampler = training.optimizer, training.loader.batch_sampler
    attached = [each.generator.get_state() for each in (optimizer, sampler)]

    def nothing() -> None:
        attach(optimizer, run, data_loader=training.loader, module=training.model)

    def set_state() -> None:
        for each, state in zip((optimizer, sampler), attached, strict=True):
            each.generator.set_state(state)

    def seed() -> None:
        for each in (optimizer, sampler):
            each.generator.manual_seed(42)

    def replace() -> None:
        optimizer.generator, sampler.generator = seeded(), seeded()

    def use_default() -> None:
        torch.manual_seed(42)
        optimizer.generator = sampler.generator = None

    seen: list[torch.Tensor] = []
    optimizer.attach_step_hook(lambda _: seen.extend(each.generator.get_state() for each in (optimizer, sampler)))
    for change in (nothing, set_state, set_state, seed, seed, replace, replace, use_default, use_default):
        change()
        training.step(next(iter(training.loader)))
    states = {state.numpy().tobytes() for state in seen}
    assert len(states) == len(seen) == 18


def test_honest_training_draws_as_without_adapter(run: FakeRun) -> None:
    """With copies of the generators, bit for bit."""
    ends = []
    loader, engine = small_loader(), new_engine()
    attach(engine, run)
    attached = None
    for made in (engine, new_engine()):
        torch.manual_seed(3)
        training = make_private(made, loader)
        holders = training.optimizer, training.loader.batch_sampler
        if attached is None:
            attached = [holder.generator.get_state() for holder in holders]
        for holder, state in zip(holders, attached, strict=True):
            holder.generator = torch.Generator() if made is not engine else holder.generator
            holder.generator.set_state(state)
        for _ in range(3):
            training.epoch()
        ends.append(training.parameters())
    assert all(map(torch.equal, *ends))


def test_default_generator_goes_on_as_if_unknown_sampler_had_not_drawn(run: FakeRun) -> None:
    training = make_private(new_engine(), seeded_loader(batch_sampler=OwnPoisson()), poisson_sampling=False)
    attach(training.optimizer, run, data_loader=training.loader, sampling_probability=Q)
    batches = iter(training.loader)
    before = torch.get_rng_state()
    next(batches)
    assert torch.equal(before, torch.get_rng_state())


class Repeating(Sampler[Any]):
    """A sampler of given batches."""

    def __init__(self, *batches: Any) -> None:  # noqa: ANN401 - lists or tensors
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def batches_of(sampler: Sampler[int]) -> dict[str, Any]:
    return {"sampler": sampler, "batch_size": 32}


ALL = range(N)
TWICE: dict[str, tuple[dict[str, Any], str]] = {
    "weighted": (
        batches_of(WeightedRandomSampler([1.0] + [1e-3] * (N - 1), N)),
        r"BatchSampler drew record 0 \d+ times",
    ),
    "with replacement": (batches_of(RandomSampler(ALL, replacement=True)), r"BatchSampler drew record \d+ \d times"),
    "more than there are": (batches_of(SubsetRandomSampler([5, 5])), "BatchSampler drew record 5 2 times"),
    "own": ({"batch_sampler": Repeating([1, 2, 1])}, "Repeating drew record 1 2 times"),
    "own, by tensor": ({"batch_sampler": Repeating(torch.tensor([1, 2, 1]))}, "Repeating drew record 1 2 times"),
    "own, by tensors, in a worker": (
        {"batch_sampler": Repeating([torch.tensor(1)] * 2), "num_workers": 1},
        "Repeating drew record 1 2 times",
    ),
}


@pytest.mark.parametrize("name", TWICE)
def test_sampler_that_draws_record_twice_is_refused(run: FakeRun, name: str) -> None:
    run.hear(neighboring_relation="replace_one")
    terms, reason = TWICE[name]
    training = make_private(new_engine(), seeded_loader(**terms), poisson_sampling=False)
    attach(training.optimizer, run, data_loader=training.loader, sampling_probability=1.0)
    with refuses(reason):
        training.epoch()
    assert run.asked == []


def test_dataset_that_has_record_twice_is_refused(run: FakeRun) -> None:
    records = small_loader().dataset
    for dataset, reason in (
        (Subset(records, [*ALL, 0]), "the Subset has an index twice"),
        (ConcatDataset([records, records]), "the ConcatDataset has a dataset twice"),
    ):
        training = make_private(new_engine(), DataLoader(dataset, BATCH))
        with refuses(reason):
            attach(training.optimizer, run, data_loader=training.loader, public_size=N)


FIXED: dict[str, dict[str, Any]] = {
    "shuffled": {"shuffle": True, "batch_size": BATCH},
    "in order": {"batch_size": BATCH},
    "subset": batches_of(SubsetRandomSampler(ALL)),
    "own batches": {"batch_sampler": BatchSampler(RandomSampler(ALL), BATCH, drop_last=True)},
    "own batches in order": {"batch_sampler": BatchSampler(SequentialSampler(ALL), BATCH, drop_last=False)},
}


@pytest.mark.parametrize("name", FIXED)
def test_torchs_own_sampler_is_not_believed_to_be_poisson(run: FakeRun, name: str) -> None:
    run.hear(neighboring_relation="replace_one")
    reason = r"=0\.125 is stated, but torch's BatchSampler makes batches of one size"
    engine = new_engine()
    attach(engine, run, sampling_probability=0.125)
    with refuses(reason):
        make_private(engine, seeded_loader(**FIXED[name]), poisson_sampling=False)
    training = make_private(new_engine(), seeded_loader(**FIXED[name]), poisson_sampling=False)
    given: dict[str, Any] = {"data_loader": training.loader}
    with refuses(reason):
        attach(training.optimizer, run, **given, sampling_probability=0.125)
    attach(training.optimizer, run, **given, sampling_probability=1.0)
    for stated, why in ((0.125, reason), (None, "does not draw Poisson samples")):
        with refuses(why):
            attach([training.optimizer], run, sampling_probability=stated, releases_per_sample=2)
    assert run.asked == [gaussian(1.0)] * training.epoch()


def test_unknown_sampler_may_be_stated_as_poisson(run: FakeRun) -> None:
    engine = new_engine()
    attach(engine, run, sampling_probability=Q)
    training: Training = make_private(engine, seeded_loader(batch_sampler=OwnPoisson()), poisson_sampling=False)
    assert run.asked == [STEP] * training.epoch()
