"""One draw of the sampler for each release: what a loop leaves behind, takes twice or brings along is not released."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from opacus.schedulers import ExponentialGradClip
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch.utils.data import DataLoader

from epsilon_ledger import EventCount, Trial, composed, gaussian, poisson_sampled, self_composed
from epsilon_ledger.opacus import UnsupportedTrainingError, attach, discard_batch
from tests.frameworks.conftest import STEP, Q, Training, make_private, new_engine, small_loader
from tests.sdk.fake_ledger import STEPS_PER_EPOCH as EPOCH
from tests.sdk.fake_ledger import FakeRun

GHOST: dict[str, Any] = {"grad_sample_mode": "ghost"}
KINDS: dict[str, dict[str, Any]] = {
    "flat": {},
    "per layer": {"clipping": "per_layer", "max_grad_norm": [0.5] * 4},
    "ghost": GHOST,
}


def refuses(match: str) -> Any:  # noqa: ANN401 - a context
    return pytest.raises(UnsupportedTrainingError, match=match)


def attached(engine: PrivacyEngine, run: FakeRun, **terms: Any) -> Training:  # noqa: ANN401 - passed on
    attach(engine, run)
    return make_private(engine, **terms)


@pytest.fixture(params=KINDS)
def training(request: pytest.FixtureRequest, engine: PrivacyEngine, run: FakeRun) -> Training:
    return attached(engine, run, **KINDS[request.param])


def pieces_of(training: Training, size: int = 2) -> DataLoader[Any]:
    manager = BatchMemoryManager(
        data_loader=training.loader, max_physical_batch_size=size, optimizer=training.optimizer
    )
    with manager as pieces:
        loader: DataLoader[Any] = pieces
    return loader


def first_step(training: Training) -> None:
    training.step(next(batch for batch in drawn(training) if len(batch[0])))


def drawn(training: Training, loader: DataLoader[Any] | None = None) -> Iterator[Any]:
    """Iterate a loader, and give up each batch that is not stepped."""
    for batch in loader or training.loader:
        yield batch
        discard_batch(training.optimizer)


def announce(training: Training) -> None:
    training.optimizer.signal_skip_step(do_skip=True)


def test_rest_of_batch_is_given_up_before_next_iteration(training: Training, run: FakeRun) -> None:
    announce(training)
    with refuses(r"signal_skip_step announced .*discard_batch"):
        iter(training.loader)
    discard_batch(training.optimizer)
    pieces = pieces_of(training)
    for batch in pieces:
        training.step(batch)
        if any(p.summed_grad is not None for p in training.optimizer.params):
            break
    for loader in (pieces, training.loader):
        with refuses(r"holds 2 of the .*discard_batch\(optimizer\) gives up"):
            iter(loader)
    discard_batch(training.optimizer)
    before = len(run.asked)
    training.epoch(pieces)
    assert len(run.asked) == before + EPOCH


@pytest.mark.parametrize("again", ["loader", "training"])
def test_draw_left_for_another_loader_or_training_of_run_is_charged(
    engine: PrivacyEngine, run: FakeRun, again: str
) -> None:
    training = attached(engine, run)
    next(iter(training.loader))
    if again == "loader":
        other = DPDataLoader.from_data_loader(small_loader())
        attach(training.optimizer, run, data_loader=other)
    else:
        attached(new_engine(), run)
    assert run.asked == [STEP]
    discard_batch(training.optimizer)
    assert run.asked == [STEP]


def test_draw_is_given_up_though_hook_was_taken_away(engine: PrivacyEngine, run: FakeRun) -> None:
    training = attached(engine, run)
    next(iter(training.loader))
    training.optimizer.step_hook = None
    discard_batch(training.optimizer)
    assert run.asked == [STEP]


def test_sum_of_several_batches_is_not_released(training: Training, run: FakeRun) -> None:
    before, batches = training.parameters(), iter(training.loader)
    announce(training)
    training.step(next(batches))
    with refuses(r"The last batch was not stepped.* do not skip, prefetch or accumulate"):
        next(batches)
    announce(training)
    discard_batch(training.optimizer)
    assert all(p.grad is p.summed_grad is None for p in training.optimizer.params)
    assert run.asked == [STEP]
    assert all(map(torch.equal, before, training.parameters()))
    # The signals are those of batches that are gone: the next one is whole again.
    training.step(next(batches))
    assert run.asked == [STEP] * 2


def test_batch_that_is_cut_by_hand_is_released_whole_or_not(training: Training, run: FakeRun) -> None:
    batches = ((place, batch) for place, batch in enumerate(drawn(training)) if len(batch[0]) > 3)
    cuts: list[tuple[slice, slice, str]] = [
        (slice(2), slice(2, None), ""),
        (slice(2), slice(2, 3), "gradient is of 3 records"),
        (slice(None), slice(1), "a record is in it more than once"),
    ]
    for first, second, reason in cuts:
        place, (x, y) = next(batches)
        announce(training)
        training.step((x[first], y[first]))
        if reason:
            with refuses(reason):
                training.step((x[second], y[second]))
        else:
            training.step((x[second], y[second]))
    assert run.asked == [STEP] * place


def test_piece_with_other_records_or_out_of_turn_spoils_its_batch(training: Training) -> None:
    before = training.parameters()
    training.loader.batch_sampler.sample_rate = 1.0
    x, y = next(piece for piece in drawn(training, pieces_of(training)) if len(piece[0]) == 2)
    discard_batch(training.optimizer)
    own = next(piece for piece in drawn(training, pieces_of(training)) if len(piece[0]) == 2)
    # Even in a batch of four or more, of which another piece could be left out to make up for it.
    with refuses("gradient is of 4 records, but the batch that was drawn has 2"):
        training.step((torch.cat((x, own[0])), torch.cat((y, own[1]))))
    discard_batch(training.optimizer)
    pieces = iter(pieces_of(training))
    training.step(first := next(pieces))
    with refuses("physical batch 1 of its batch, and 1 were stepped"):
        training.step(first)
    with refuses("physical batch 2 of its batch, and 0 were stepped"):
        training.step(next(pieces))
    assert all(map(torch.equal, before, training.parameters()))


def test_batch_is_stepped_once(training: Training, run: FakeRun) -> None:
    for batch in training.loader:
        training.step(batch)
        with refuses(r"released already.*attach\(\(first, second\).*releases_per_sa"):
            training.step(batch)
    assert run.asked == [STEP] * EPOCH


def test_draws_of_sampler_without_its_loader_are_charged(training: Training, run: FakeRun) -> None:
    for indices in training.loader.batch_sampler:
        training.step(training.loader.dataset[indices])
    assert run.asked == [STEP] * EPOCH


def test_batches_of_other_loaders_and_earlier_iterations_are_refused(engine: PrivacyEngine, run: FakeRun) -> None:
    old = small_loader()
    attach(engine, run)
    training = make_private(engine, old)
    with refuses(r"No batch was drawn .* Iterate the loader that make_private"):
        training.epoch(old)
    begun = make_private(new_engine())
    batches = iter(begun.loader)
    attach(begun.optimizer, run, data_loader=begun.loader)
    with refuses("since the optimizer was attached and an iteration began"):
        begun.step(next(batches))
    unordered = make_private(new_engine(), small_loader(workers=1))
    unordered.loader.in_order = False
    attach(unordered.optimizer, run, data_loader=unordered.loader)
    with refuses("Leave in_order=True"):
        iter(unordered.loader)
    assert run.asked == []


def test_norm_that_moves_between_pieces_and_noise_without_end_are_refused(engine: PrivacyEngine, run: FakeRun) -> None:
    training = attached(engine, run)
    pieces = iter(pieces_of(training))
    training.step(next(pieces))
    training.optimizer.max_grad_norm = 0.1
    with refuses(r"from 1\.0 to 0\.1 between two physical batches"):
        training.step(next(pieces))
    discard_batch(training.optimizer)
    for noise in (math.inf, 0.0):
        training.optimizer.noise_multiplier = noise
        with pytest.raises(ValueError, match="noise_multiplier must be in"):
            first_step(training)
    assert run.asked == [STEP]


def test_unsampled_batches_are_not_added_up(engine: PrivacyEngine, run: FakeRun) -> None:
    run.hear(neighboring_relation="replace_one")
    training = make_private(engine, small_loader(shuffle=True), poisson_sampling=False)
    attach(training.optimizer, run, sampling_probability=1.0)
    announce(training)
    with refuses(r"not known which batch this physical batch is of\. .*data_loader="):
        training.step(next(iter(training.loader)))
    attach(training.optimizer, run, sampling_probability=1.0, data_loader=training.loader)
    training.epoch(pieces_of(training))
    assert run.asked == [gaussian(1.0)] * EPOCH
    # Charged as if it saw everybody, a batch may be stepped again.
    batches = iter(training.loader)
    batch = next(batches)
    for _ in range(3):
        training.step(batch)
    announce(training)
    training.step(batch)
    with refuses("holds a part of an earlier batch"):
        training.step(next(batches))
    assert run.asked == [gaussian(1.0)] * (EPOCH + 3)


def test_optimizers_that_share_samples_are_charged_as_one_event(engine: PrivacyEngine, run: FakeRun) -> None:
    """Two networks, each with its optimizer, that are trained on one loader."""
    loader = small_loader()
    first, second = make_private(engine, loader), make_private(engine, loader, noise_multiplier=2.0)
    for training in (first, second):
        attach(training.optimizer, run, data_loader=first.loader)
    batch = next(iter(first.loader))
    first.step(batch)
    with refuses(r"released already.* attach them together"):
        second.step(batch)
    attach((first.optimizer, second.optimizer), run, data_loader=first.loader)
    for place, batch in enumerate(first.loader):
        for training in (first, second) if place % 2 else (second, first):
            training.step(batch)
            with refuses("released already"):
                training.step(batch)
    together = poisson_sampled(Q, composed([gaussian(1.0), gaussian(2.0)]))
    assert run.asked == [STEP] + [together] * EPOCH


def test_steps_that_share_sample_are_charged_as_one_event(engine: PrivacyEngine, run: FakeRun) -> None:
    attach(engine, run, releases_per_sample=2)
    training = make_private(engine)
    for batch in training.loader:
        for _ in range(2):
            training.step(batch)
        with refuses("released already"):
            training.step(batch)
    assert run.asked == [poisson_sampled(Q, self_composed(gaussian(1.0), 2))] * EPOCH
    assert engine.accountant.events[0]["count"] == EPOCH
    batches = iter(training.loader)
    training.step(batch := next(batches))
    training.optimizer.noise_multiplier = 0.5
    with refuses("Move noise and clipping norms only between samples"):
        training.step(batch)
    training.step(batch := next(batches))
    training.step(batch)
    assert run.asked[-1] == poisson_sampled(Q, self_composed(gaussian(0.5), 2))


def test_norm_of_noise_is_compared_with_norm_that_module_clipped_to(engine: PrivacyEngine, run: FakeRun) -> None:
    training = attached(engine, run, **GHOST)
    training.step(next(iter(training.loader)))
    ExponentialGradClip(training.optimizer, gamma=0.1).step()
    attach(training.optimizer, run, data_loader=training.loader)
    batch = next(batches := iter(training.loader))
    with refuses(r"norm is 0\.1, .* the module that clips, and it did so to 1\.0"):
        training.step(batch)
    training.model.max_grad_norm = 0.1
    training.step(batch)
    assert run.asked == [STEP] * 2
    # A norm that moves for one backward pass only.
    x, y = next(batches)
    loss = training.criterion(training.model(x), y)
    training.model.max_grad_norm = 10.0
    loss.backward()
    training.model.max_grad_norm = 0.1
    with refuses(r"it did so to 10\.0"):
        training.optimizer.step()
    training.optimizer.zero_grad()
    torch.nn.functional.cross_entropy(training.model(x), y).backward()
    with refuses("No gradient was clipped"):
        training.optimizer.step()
    assert run.asked == [STEP] * 2


def test_ghost_optimizer_is_attached_with_its_module(engine: PrivacyEngine, run: FakeRun) -> None:
    training = make_private(engine, **GHOST)
    with refuses(r"Give module=\.\.\., what make_private returned first"):
        attach(training.optimizer, run, data_loader=training.loader)
    # What is refused has changed nothing.
    assert not hasattr(training.optimizer.pre_step.__self__, "source")
    attach(training.optimizer, run, data_loader=training.loader, module=training.model)
    assert run.asked == [STEP] * training.epoch()


def test_earlier_steps_are_refused_reported_or_charged_already(engine: PrivacyEngine) -> None:
    run, training = FakeRun(), make_private(engine)
    training.epoch()

    def attach_to(run: Any, **how: Any) -> None:  # noqa: ANN401 - a run or a trial
        attach(training.optimizer, run, data_loader=training.loader, **how)

    with refuses(r"shows 8 steps, and 8 of them were not charged.*'report'"):
        attach_to(run)
    with refuses("reports it to a Run"):
        attach_to(Trial(run.state, 0, [EventCount(event=STEP, count=99)]), earlier_steps="report")
    assert run.asked == []
    attach_to(run, earlier_steps="report")
    training.epoch()
    # What was reported, and what the hook has counted since, is not reported again.
    attach_to(run, earlier_steps="report")
    assert run.asked == [STEP] * 16
    training, charged = make_private(new_engine()), FakeRun(id=run.id)
    training.epoch()
    attach_to(charged, earlier_steps="charged")
    training.epoch()
    assert charged.asked == [STEP] * 8
