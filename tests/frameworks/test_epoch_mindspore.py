"""Pipelines of MindSpore: an epoch holds each record once, or it is refused. Runs where MindSpore is installed."""

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest

from epsilon_ledger._mindspore.pipelines import UnsupportedTrainingError, require_records_once
from epsilon_ledger._run.batch_sources import reason_against

ds = pytest.importorskip("mindspore.dataset")


def records(**how: Any) -> Any:  # noqa: ANN401 - a pipeline
    return ds.NumpySlicesDataset({"x": np.arange(10)}, **how)


def fine() -> dict[str, Any]:
    return {
        "in order": records(shuffle=False).batch(3),
        "shuffled": records(shuffle=True).shuffle(4).map(lambda x: x, "x").batch(3),
        "columns": records().rename("x", "z").project(["z"]).batch(2, drop_remainder=True),
        "generated": ds.GeneratorDataset(list(range(10)), ["x"], shuffle=True).batch(3),
        "iterator": records().batch(3).create_dict_iterator(num_epochs=1),
    }


def repeating() -> list[tuple[str, Any]]:
    return [
        ("repeat() has each record", records().batch(3).repeat(2)),
        ("RepeatDataset may hand on", records().repeat(2).batch(3).create_tuple_iterator()),
        ("FilterDataset may hand on", records().filter(lambda x: x > 3, "x").batch(2)),
        ("TakeDataset may hand on", records().take(5).batch(2)),
        ("ConcatDataset may hand on", (records() + records()).batch(2)),
        ("ZipDataset may hand on", ds.zip((records(), records().rename("x", "y"))).batch(2)),
        ("SyncWaitDataset may hand on", records().sync_wait("go").batch(2)),
        ("without per_batch_map", records().batch(3, per_batch_map=lambda x, _: (x,), input_columns=["x"])),
        ("last operation is MapDataset", records().batch(3).map(lambda x: x[::-1], "x")),
        ("last operation is NumpySlicesDataset", records()),
        ("decides the size of each batch", records().batch(lambda _: 2)),
        ("use one shard", records(num_shards=3, shard_id=0).batch(2)),
        ("DistributedSampler may", records(sampler=ds.DistributedSampler(3, 0)).batch(2)),
        ("without replacement", records(sampler=ds.RandomSampler(replacement=True)).batch(3)),
        ("WeightedRandomSampler may", records(sampler=ds.WeightedRandomSampler([0.1] * 10, 10)).batch(3)),
        ("SubsetRandomSampler may", records(sampler=ds.SubsetRandomSampler([1, 1])).batch(2)),
    ]


@pytest.mark.parametrize("name", fine())
def test_a_pipeline_that_has_each_record_once_is_accepted(name: str) -> None:
    pipeline = fine()[name]
    assert reason_against(pipeline) is None
    found: Counter[int] = Counter()
    for row in pipeline:
        [column] = row.values() if isinstance(row, dict) else row
        found.update(column.asnumpy().tolist())
    assert max(found.values()) == 1


@pytest.mark.parametrize("place", range(len(repeating())))
def test_a_pipeline_that_may_have_a_record_twice_is_refused(place: int) -> None:
    advice, pipeline = repeating()[place]
    reason = reason_against(pipeline)
    assert reason is not None
    assert advice in reason


def test_the_adapter_has_the_same_rule() -> None:
    for pipeline in fine().values():
        if hasattr(pipeline, "children"):
            assert require_records_once(pipeline) is pipeline.children[0]
    for advice, pipeline in repeating():
        if hasattr(pipeline, "children"):
            with pytest.raises(UnsupportedTrainingError, match=re.escape(advice)):
                require_records_once(pipeline)
