"""One draw of the sampler for each release: what a loop leaves behind, takes twice or brings along is not released."""

import copy
from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch.utils.data import DataLoader

from epsilon_ledger import LedgerUnavailableError, gaussian, poisson_sampled
from epsilon_ledger.opacus import UnsupportedTrainingError, attach, discard_batch
from tests.frameworks.conftest import HOOKS_WARN, Training, make_private, small_loader
from tests.sdk.fake_runs import BATCH, FakeRun, N

Q = BATCH / N
STEP = poisson_sampled(Q, gaussian(1.0))
KINDS: dict[str, dict[str, Any]] = {
    "flat": {},
    "per layer": {"clipping": "per_layer", "max_grad_norm": [0.5] * 4},
    "ghost": {"grad_sample_mode": "ghost"},
}

pytestmark = HOOKS_WARN


@pytest.fixture(params=KINDS)
def training(request: pytest.FixtureRequest, engine: PrivacyEngine, fake_run: FakeRun) -> Training:
    attach(engine, fake_run.as_run)
    return make_private(engine, **KINDS[request.param])


def pieces_of(training: Training, size: int = 2) -> DataLoader[Any]:
    manager = BatchMemoryManager(
        data_loader=training.loader, max_physical_batch_size=size, optimizer=training.optimizer
    )
    with manager as pieces:
        loader: DataLoader[Any] = pieces
    return loader


def test_a_loop_that_ends_within_a_batch_leaves_nothing_for_the_next_one(training: Training, fake_run: FakeRun) -> None:
    pieces = pieces_of(training)
    for batch in pieces:
        training.step(batch)
        if any(p.summed_grad is not None for p in training.optimizer.params):
            break
    for loader in (pieces, training.loader):
        with pytest.raises(UnsupportedTrainingError, match=r"holds 2 of the .*discard_batch\(optimizer\) gives up"):
            iter(loader)
    discard_batch(training.optimizer)
    before = len(fake_run.asked)
    training.epoch(pieces)
    assert len(fake_run.asked) == before + N // BATCH


def test_signals_that_were_not_taken_up_are_no_part_of_a_new_iteration(training: Training) -> None:
    training.optimizer.signal_skip_step(do_skip=True)
    with pytest.raises(UnsupportedTrainingError, match=r"signal_skip_step announced .*discard_batch"):
        iter(training.loader)
    discard_batch(training.optimizer)
    iter(training.loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_after_a_fault_each_step_is_of_its_own_batch(
    engine: PrivacyEngine, fake_run: FakeRun, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    training = make_private(engine, small_loader(workers=workers))
    attach(training.optimizer, fake_run.as_run, data_loader=training.loader)
    pieces = pieces_of(training)
    authorize = FakeRun.authorize
    with monkeypatch.context() as broken:
        broken.setattr(FakeRun, "authorize", unavailable)
        with pytest.raises(LedgerUnavailableError):
            training.epoch(pieces)
    assert FakeRun.authorize is authorize
    # Nothing is left of the batch that was not released, nor of those that workers had drawn ahead.
    training.epoch(pieces)
    assert fake_run.asked == [STEP] * (N // BATCH)


def unavailable(*_: object, **__: object) -> None:
    raise LedgerUnavailableError("no answer")


def test_a_sum_of_several_batches_is_not_released(training: Training, fake_run: FakeRun) -> None:
    before = training.parameters()
    batches = iter(training.loader)
    training.optimizer.signal_skip_step(do_skip=True)
    training.step(next(batches))
    training.optimizer.signal_skip_step(do_skip=True)
    with pytest.raises(UnsupportedTrainingError, match="holds a part of an earlier batch"):
        training.step(next(batches))
    assert all(p.grad is p.summed_grad is None for p in training.optimizer.params)
    assert fake_run.asked == []
    assert all(map(torch.equal, before, training.parameters()))
    # The signals are those of batches that are gone: the next one is whole again.
    training.step(next(batches))
    assert fake_run.asked == [STEP]


def test_a_batch_may_be_cut_by_hand_but_is_released_whole(training: Training, fake_run: FakeRun) -> None:
    batches = (batch for batch in training.loader if len(batch[0]) > 3)
    x, y = next(batches)
    training.optimizer.signal_skip_step(do_skip=True)
    training.step((x[:2], y[:2]))
    training.step((x[2:], y[2:]))
    assert fake_run.asked == [STEP]
    x, y = next(batches)
    training.optimizer.signal_skip_step(do_skip=True)
    training.step((x[:2], y[:2]))
    with pytest.raises(UnsupportedTrainingError, match="gradient is of 3 records"):
        training.step((x[2:3], y[2:3]))
    x, y = next(batches)
    training.optimizer.signal_skip_step(do_skip=True)
    training.step((x, y))
    with pytest.raises(UnsupportedTrainingError, match="a record is in it more than once"):
        training.step((x[:1], y[:1]))
    assert fake_run.asked == [STEP]


def test_a_piece_has_its_own_records_only(training: Training, fake_run: FakeRun) -> None:
    pieces = iter(pieces_of(training))
    x, y = next(piece for piece in pieces if len(piece[0]) == 2)
    discard_batch(training.optimizer)
    pieces = iter(pieces_of(training))
    own = next(piece for piece in pieces if len(piece[0]) == 2)
    # Even in a batch of four or more, of which another piece could be left out to make up for it.
    with pytest.raises(UnsupportedTrainingError, match="gradient is of 4 records, but the batch that was drawn has 2"):
        training.step((torch.cat((x, own[0])), torch.cat((y, own[1]))))
    assert fake_run.asked == []


def test_a_piece_that_is_left_out_or_stepped_twice_spoils_its_batch(training: Training, fake_run: FakeRun) -> None:
    pieces = iter(pieces_of(training))
    training.step(first := next(pieces))
    with pytest.raises(UnsupportedTrainingError, match="physical batch 1 of its batch, and 1 were stepped"):
        training.step(first)
    with pytest.raises(UnsupportedTrainingError, match="physical batch 2 of its batch, and 0 were stepped"):
        training.step(next(pieces))
    assert fake_run.asked == []


def test_a_batch_is_stepped_once(training: Training, fake_run: FakeRun) -> None:
    batches = iter(training.loader)
    batch = next(batches)
    training.step(batch)
    with pytest.raises(UnsupportedTrainingError, match=r"released already.*attach\(\(first, second\).*releases_per_sa"):
        training.step(batch)
    training.step(next(batches))
    assert fake_run.asked == [STEP] * 2


@pytest.mark.parametrize("workers", [0, 2])
def test_what_workers_drew_ahead_is_not_there_for_a_second_step(
    engine: PrivacyEngine, fake_run: FakeRun, workers: int
) -> None:
    training = make_private(engine, small_loader(workers=workers))
    attach(training.optimizer, fake_run.as_run, data_loader=training.loader)
    for batch in training.loader:
        training.step(batch)
        with pytest.raises(UnsupportedTrainingError, match="released already"):
            training.step(batch)
    assert fake_run.asked == [STEP] * (N // BATCH)


def test_batches_that_are_left_out_are_not_charged(training: Training, fake_run: FakeRun) -> None:
    for place, batch in enumerate(training.loader):
        if place % 2:
            training.step(batch)
    assert fake_run.asked == [STEP] * (N // BATCH // 2)


def test_a_gradient_of_more_records_than_were_drawn_is_not_this_batchs(training: Training, fake_run: FakeRun) -> None:
    next(iter(training.loader))
    with pytest.raises(UnsupportedTrainingError, match="gradient is of 64 records, but the batch that was drawn"):
        training.step((torch.randn(64, 4), torch.zeros(64, dtype=torch.long)))
    assert fake_run.asked == []


def test_the_old_loader_draws_no_samples(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    old = small_loader()
    attach(engine, fake_run.as_run)
    training = make_private(engine, old)
    with pytest.raises(UnsupportedTrainingError, match=r"No batch was drawn .* Iterate the loader that make_private"):
        training.epoch(old)
    assert fake_run.asked == []


def test_a_loop_that_began_before_is_not_gone_on_with(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    training = make_private(engine)
    batches = iter(training.loader)
    attach(training.optimizer, fake_run.as_run, data_loader=training.loader)
    with pytest.raises(UnsupportedTrainingError, match="since the optimizer was attached and an iteration began"):
        training.step(next(batches))


def test_a_sampler_iterated_by_hand_counts_as_a_loader(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    training = make_private(engine)
    attach(training.optimizer, fake_run.as_run, data_loader=training.loader)
    for indices in training.loader.batch_sampler:
        x, y = training.loader.dataset[indices]
        training.step((x, y))
    assert fake_run.asked == [STEP] * (N // BATCH)
    # A copy draws samples of its own, of which nothing is known.
    other = copy.deepcopy(training.loader)
    assert type(other.batch_sampler) is UniformWithReplacementSampler
    with pytest.raises(UnsupportedTrainingError, match="released already"):
        training.step(next(iter(other)))


def test_workers_that_hand_out_in_any_order_are_turned_away(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    training = make_private(engine, small_loader(workers=1))
    training.loader.in_order = False
    attach(training.optimizer, fake_run.as_run, data_loader=training.loader)
    with pytest.raises(UnsupportedTrainingError, match="Leave in_order=True"):
        iter(training.loader)


def test_a_norm_that_moves_between_pieces_does_not_thin_the_noise(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    attach(engine, fake_run.as_run)
    training = make_private(engine)
    pieces = iter(pieces_of(training))
    training.step(next(pieces))
    training.optimizer.max_grad_norm = 0.1
    with pytest.raises(UnsupportedTrainingError, match=r"from 1\.0 to 0\.1 between two physical batches"):
        training.step(next(pieces))
    assert fake_run.asked == []


def test_unsampled_batches_are_not_added_up_either(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    fake_run.state.neighboring_relation = "replace_one"
    training = make_private(engine, small_loader(shuffle=True), poisson_sampling=False)
    attach(training.optimizer, fake_run.as_run, sampling_probability=1.0)
    training.optimizer.signal_skip_step(do_skip=True)
    with pytest.raises(
        UnsupportedTrainingError, match=r"not known which batch this physical batch is of\. .*data_loader="
    ):
        training.step(next(iter(training.loader)))
    attach(training.optimizer, fake_run.as_run, sampling_probability=1.0, data_loader=training.loader)
    training.epoch(pieces_of(training))
    assert fake_run.asked == [gaussian(1.0)] * (N // BATCH)
    # Charged as if it saw everybody, a batch may be stepped again.
    batches = iter(training.loader)
    batch = next(batches)
    for _ in range(3):
        training.step(batch)
    training.optimizer.signal_skip_step(do_skip=True)
    training.step(batch)
    with pytest.raises(UnsupportedTrainingError, match="holds a part of an earlier batch"):
        training.step(next(batches))
    assert fake_run.asked == [gaussian(1.0)] * (N // BATCH + 3)


def test_an_optimizer_that_is_not_attached_gets_opacus_own_signals(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    loader = small_loader()
    attached, other = make_private(engine, loader), make_private(engine, loader)
    attach(attached.optimizer, fake_run.as_run, data_loader=attached.loader)
    released: list[int] = []
    other.optimizer.attach_step_hook(lambda _: released.append(1))
    other.loader = attached.loader
    other.epoch(pieces_of(other))
    assert len(released) == N // BATCH
