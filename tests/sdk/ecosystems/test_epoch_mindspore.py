"""Pipelines of MindSpore: an epoch holds each record once, or it is refused. Runs where MindSpore is installed."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from epsilon_ledger._run.batch_sources import reason_against

ds = pytest.importorskip("mindspore.dataset")


def records(**how: Any) -> Any:  # noqa: ANN401 - a pipeline
    return ds.NumpySlicesDataset({"x": np.arange(10)}, **how)


def fine() -> dict[str, Any]:
    return {
        "in order": records(shuffle=False).batch(3),
        "shuffled": records(shuffle=True).shuffle(4).map(lambda x: x, "x").batch(3),
        "taken": records().take(5).batch(2, drop_remainder=True),
        "subset": records(sampler=ds.SubsetRandomSampler([1, 2, 3])).batch(2),
        "generated": ds.GeneratorDataset(list(range(10)), ["x"], shuffle=True).batch(3),
        "iterator": records().batch(3).create_dict_iterator(num_epochs=1),
    }


def repeating() -> dict[str, Any]:
    return {
        "repeat": records().batch(3).repeat(2),
        "repeat() has each record": records().repeat(2).batch(3).create_tuple_iterator(),
        "use one shard": records(num_shards=3, shard_id=0).batch(2),
        "DistributedSampler may": records(sampler=ds.DistributedSampler(3, 0)).batch(2),
        "replacement=False": records(sampler=ds.RandomSampler(replacement=True)).batch(3),
        "WeightedRandomSampler may": records(sampler=ds.WeightedRandomSampler([0.1] * 10, 10)).batch(3),
        "an index twice": records(sampler=ds.SubsetRandomSampler([1, 1])).batch(2),
        "by the content": records().filter(lambda x: x > 3, "x").batch(2),
    }


@pytest.mark.parametrize("name", fine())
def test_a_pipeline_that_has_each_record_once_is_accepted(name: str) -> None:
    pipeline = fine()[name]
    assert reason_against(pipeline) is None
    found: Counter[int] = Counter()
    for row in pipeline:
        [column] = row.values() if isinstance(row, dict) else row
        found.update(column.asnumpy().tolist())
    assert max(found.values()) == 1


@pytest.mark.parametrize("advice", repeating())
def test_a_pipeline_that_may_have_a_record_twice_is_refused(advice: str) -> None:
    reason = reason_against(repeating()[advice])
    assert reason is not None
    assert advice in reason
