"""Loaders of torch, with each sampler that it has: an epoch holds each record once, or it is refused."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from opacus.data_loader import DPDataLoader
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from epsilon_ledger import LedgerClient, gaussian
from epsilon_ledger._run.batch_sources import reason_against
from tests.sdk.fake_ledger import open_budget

RECORDS = TensorDataset(torch.arange(10))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


class OwnSampler(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))

    def __len__(self) -> int:
        return 10


def shards(*, drop_last: bool) -> DataLoader[Any]:
    sampler: Sampler[int] = DistributedSampler(RECORDS, num_replicas=3, rank=0, drop_last=drop_last)
    return DataLoader(RECORDS, 2, sampler=sampler)


def over(dataset: Dataset[Any]) -> DataLoader[Any]:
    return DataLoader(dataset, 3, shuffle=True)


def drawn(sampler: Sampler[int]) -> DataLoader[Any]:
    return DataLoader(RECORDS, 3, sampler=sampler)


FINE = {
    "in order": DataLoader(RECORDS, 3),
    "shuffled": DataLoader(RECORDS, 3, shuffle=True),
    "drop_last": DataLoader(RECORDS, 3, shuffle=True, drop_last=True),
    "shards": shards(drop_last=True),
    "subset": over(Subset(RECORDS, [1, 3, 5])),
    "subset in random order": drawn(SubsetRandomSampler([4, 2, 0])),
    "tensor of indices": over(Subset(RECORDS, torch.tensor([4, 2, 0]))),
    "two data sets": over(ConcatDataset([RECORDS, TensorDataset(torch.arange(10, 20))])),
    "fewer samples": drawn(RandomSampler(RECORDS, num_samples=4)),
    "own batches": DataLoader(RECORDS, batch_sampler=BatchSampler(RandomSampler(RECORDS), 4, drop_last=False)),
    "batches as samples": DataLoader(
        RECORDS, sampler=BatchSampler(SequentialSampler(RECORDS), 4, drop_last=False), batch_size=None
    ),
    "stream": DataLoader(Stream(), 3),
    "stream of one worker": DataLoader(Stream(), 3, num_workers=1),
}
REPEATING = {
    "replacement=False": drawn(RandomSampler(RECORDS, replacement=True)),
    "lower num_samples": drawn(RandomSampler(RECORDS, num_samples=15)),
    "WeightedRandomSampler": drawn(WeightedRandomSampler([1.0] * 10, 10, replacement=False)),
    "an index twice": drawn(SubsetRandomSampler([1, 1, 2])),
    "Subset has an index twice": over(Subset(RECORDS, [1, 1, 2])),
    "a dataset twice": over(ConcatDataset([RECORDS, RECORDS])),
    "in the concatenated one, an index twice": over(ConcatDataset([RECORDS, Subset(RECORDS, [1, 1])])),
    "drop_last=True": shards(drop_last=False),
    "use one worker": DataLoader(Stream(), 3, num_workers=2),
    "UniformWithReplacementSampler draws Poisson": DPDataLoader(RECORDS, sample_rate=0.3),
    "OwnSampler is unknown": drawn(OwnSampler()),
}


def test_loader_that_has_each_record_once_is_accepted() -> None:
    for name, loader in FINE.items():
        assert reason_against(loader) is None, name
        if not isinstance(loader.dataset, IterableDataset):
            for _ in range(3):
                found = Counter(int(record) for (batch,) in loader for record in batch)
                assert max(found.values()) == 1


def test_loader_that_may_have_record_twice_is_refused() -> None:
    for advice, loader in REPEATING.items():
        reason = reason_against(loader)
        assert reason is not None, advice
        assert advice.rpartition(", ")[2] in reason


def test_shuffled_loader_is_charged_once_epoch(admin: LedgerClient) -> None:
    loader = DataLoader(RECORDS, 3, shuffle=True)
    with admin.create_run("shuffled", budget=open_budget(admin, 12.0, "replace_one")) as run:
        for epoch in (1, 2):
            for _ in run.track_epoch(loader, gaussian(1.5)):
                assert run.next_step == epoch
        with pytest.raises(ValueError, match="OwnSampler is unknown"):
            run.track_epoch(drawn(OwnSampler()), gaussian(1.5))
        assert len(list(run.track_epoch(drawn(OwnSampler()), gaussian(20.0), assume_disjoint=True))) == 4
        with pytest.raises(ValueError, match="give their number"):
            run.track_epoch(DataLoader(Stream(), 3), gaussian(1.5))
