"""Pipelines of MindSpore by the names of their operations: one rule for epochs and for both adapters.

These tests run without MindSpore, on operations that look alike.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from epsilon_ledger._mindspore.pipelines import UnsupportedTrainingError, require_records_once
from epsilon_ledger._run.epochs import epoch_steps

Operation = Any
"""An operation that looks like one of MindSpore."""


def looks_like(name: str, **attributes: object) -> Operation:
    return type(name, (SimpleNamespace,), {"__module__": "mindspore.dataset.engine"})(**attributes)


def operation(name: str, *children: Operation, **attributes: object) -> Operation:
    return looks_like(name, children=list(children), **attributes)


def source(order: str | None = "RandomSampler", **attributes: object) -> Operation:
    made = None if order is None else looks_like(order, replacement=False, child_sampler=None)
    return operation("GeneratorDataset", **{"sampler": made, "num_shards": None} | attributes)


def batched(*children: Operation, **attributes: object) -> Operation:
    return operation("BatchDataset", *children, **{"per_batch_map": None, "batch_size_func": None} | attributes)


ACCEPTED = {
    "plain": batched(source()),
    "without a sampler": batched(source(None)),
    "in order": batched(source("SequentialSampler", num_shards=1)),
    "columns": batched(operation("ProjectDataset", operation("RenameDataset", source()))),
    "mapped": batched(operation("ShuffleDataset", operation("MapDataset", source()))),
}

REFUSED = {
    "RepeatDataset may": batched(operation("RepeatDataset", source())),
    "leave it out": operation("RepeatDataset", batched(source())),
    "ConcatDataset may": batched(operation("ConcatDataset", source(), source())),
    "ZipDataset may": batched(operation("ZipDataset", source(), source())),
    "two sources": batched(operation("MapDataset", source(), source())),
    "FlatMapDataset may": batched(operation("FlatMapDataset", source())),
    "FilterDataset may": batched(operation("FilterDataset", source())),
    "without per_batch_map": batched(source(), per_batch_map=print),
    "decides the size of each batch": batched(source(), batch_size_func=print),
    "last operation is MapDataset": operation("MapDataset", batched(source())),
    "last operation is BucketBatchByLengthDataset": operation("BucketBatchByLengthDataset", source()),
    "an operation of tomorrow": batched(operation("NewDataset", source())),
    "use one shard": batched(source(num_shards=2)),
    "SubsetSampler may": batched(source("SubsetSampler")),
    "without replacement": batched(source(sampler=looks_like("RandomSampler", replacement=True))),
}
ADVICE = {"two sources": "MapDataset may", "an operation of tomorrow": "NewDataset may"}


def test_pipeline_with_each_record_once_is_accepted() -> None:
    for dataset in ACCEPTED.values():
        assert require_records_once(dataset) is dataset.children[0]
        for batches in (dataset, looks_like("DictIterator", dataset=dataset)):
            assert epoch_steps(batches, None, 4, assume_disjoint=False) == 4


@pytest.mark.parametrize("name", REFUSED)
def test_any_other_pipeline_is_refused_by_epochs_and_adapters_alike(name: str) -> None:
    dataset, advice = REFUSED[name], ADVICE.get(name, name)
    with pytest.raises(UnsupportedTrainingError, match=advice):
        require_records_once(dataset)
    for batches in (dataset, looks_like("DictIterator", dataset=dataset)):
        with pytest.raises(ValueError, match=advice):
            epoch_steps(batches, None, 4, assume_disjoint=False)
        assert epoch_steps(batches, None, 4, assume_disjoint=True) == 4
