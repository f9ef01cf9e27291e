"""Loaders of torch by the classes of their samplers, without torch: one that is unknown is named with its reason.

`tests/frameworks/test_epoch_loaders.py` has the loaders of torch itself.
"""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from epsilon_ledger._run.epochs import epoch_steps


@pytest.fixture
def torch_data(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that looks like torch.utils.data."""
    module = ModuleType("torch.utils.data")
    for name in ("DataLoader", "IterableDataset", "BatchSampler", "Subset", "ConcatDataset"):
        setattr(module, name, type(name, (SimpleNamespace,), {}))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("UniformWithReplacementSampler", r"UniformWithReplacementSampler draws Poisson samples.*with track"),
        ("OwnSampler", r"the order of trainer\.OwnSampler is unknown"),
    ],
)
def test_sampler_that_is_not_of_torch_is_refused_for_its_own_reason(
    torch_data: ModuleType, name: str, reason: str
) -> None:
    sampler = type(name, (), {"__module__": "trainer"})()
    loader = torch_data.DataLoader(dataset=[], sampler=sampler, batch_sampler=None)
    with pytest.raises(ValueError, match=reason):
        epoch_steps(loader, None, 4, assume_disjoint=False)
    assert epoch_steps(loader, None, 4, assume_disjoint=True) == 4
