"""What an optimizer applies is what was clipped, and each draw is charged or stops the training."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.nn.functional import linear
from torch.utils.data import DataLoader, TensorDataset

from epsilon_ledger.opacus import attach, discard_batch
from tests.frameworks.conftest import STEP, Training, make_private, small_loader
from tests.frameworks.test_opacus_samples import GHOST, attached, refuses
from tests.sdk.fake_ledger import STEPS_PER_EPOCH as EPOCH
from tests.sdk.fake_ledger import FakeRun


class Net(nn.Module):
    """Two layers that are trained and a frozen one, whose weights can be used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.frozen = (nn.Linear(4, 4) for _ in range(3))
        self.frozen.requires_grad_(requires_grad=False)
        self.twice = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.frozen(self.second(self.first(x).tanh()))
        return linear(hidden, self.first.weight) if self.twice else hidden


class Penalized(nn.CrossEntropyLoss):
    """A criterion that may add a penalty to the loss of each record."""

    penalty: Callable[[], torch.Tensor] | None = None

    def forward(self, found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        losses = super().forward(found, wanted)
        return losses if self.penalty is None else losses + self.penalty()


class Loop:
    """A training of `Net` and its parts."""

    def __init__(self, run: FakeRun, net: Net | None = None, **terms: Any) -> None:  # noqa: ANN401 - passed on
        self.net, self.plain = net or Net(), Penalized()
        engine = PrivacyEngine(accountant="rdp")
        attach(engine, run)
        made = engine.make_private(
            module=self.net,
            optimizer=torch.optim.SGD(self.net.parameters(), lr=0.1),
            data_loader=small_loader(),
            criterion=self.plain,
            **{"noise_multiplier": 1.0, "max_grad_norm": 1.0} | terms,
        )
        self.model, self.optimizer, self.loader = made[0], made[1], made[-1]
        self.criterion = made[2] if len(made) == 4 else self.plain
        self.batches = iter(self.loader)

    def loss(self) -> Any:  # noqa: ANN401 - a tensor, or Opacus' own
        x, y = next(self.batches)
        self.optimizer.zero_grad()
        return self.criterion(self.model(x), y)

    def step(self) -> None:
        self.loss().backward()
        self.optimizer.step()

    def state(self) -> list[torch.Tensor]:
        return [each.detach().clone() for each in self.net.parameters()]


pytestmark = pytest.mark.filterwarnings("ignore:Secure RNG turned off", "ignore:A batch was fetched and not stepped")


def second_backward(loop: Loop) -> None:
    loop.loss().backward()
    (1e3 * loop.net.first.weight.sum()).backward()


def changed_gradient(loop: Loop) -> None:
    loop.loss().backward()
    nn.utils.clip_grad_norm_(loop.net.parameters(), 1e-3)


def replaced_gradient(loop: Loop) -> None:
    loop.loss().backward()
    loop.net.first.weight.grad = torch.ones(4, 4)


def combined_loss(loop: Loop) -> None:
    (loop.loss() + 1e3 * loop.net.first.weight.sum()).backward()


def scaled_loss(loop: Loop) -> None:
    (loop.loss() * loop.net.first.weight.sum()).backward()


def unfrozen(loop: Loop) -> None:
    loop.net.frozen.requires_grad_(requires_grad=True)
    loop.loss().backward()


def added(loop: Loop) -> None:
    loop.optimizer.param_groups.append(
        loop.optimizer.param_groups[0] | {"params": [nn.Parameter(torch.ones(3), requires_grad=True)]}
    )
    loop.loss().backward()


def weight_used_twice(loop: Loop) -> None:
    loop.net.twice = True
    loop.loss().backward()


def penalized(loop: Loop) -> None:
    loop.plain.penalty = lambda: 1e3 * loop.net.first.weight.sum()
    loop.loss().backward()


def tied(loop: Loop) -> None:
    loop.loss().backward()
    loop.net.second.weight = loop.net.first.weight


UNCLIPPED: list[tuple[Callable[[Loop], None], str]] = [
    (second_backward, "not as the criterion's backward pass left them"),
    (changed_gradient, "not as the criterion's backward pass left them"),
    (replaced_gradient, "not as the criterion's backward pass left them"),
    (combined_loss, "combined with a tensor that needs gradients"),
    (scaled_loss, "combined with a tensor that needs gradients"),
    (unfrozen, "unfrozen or added after make_private"),
    (added, "unfrozen or added after make_private"),
    (weight_used_twice, "otherwise than through its layer"),
    (penalized, "otherwise than through its layer"),
    (tied, "second.weight are one parameter|first.weight and second.weight are one parameter"),
]


@pytest.mark.parametrize(("spoil", "why"), UNCLIPPED, ids=[spoil.__name__ for spoil, _ in UNCLIPPED])
def test_ghost_step_with_gradient_that_was_not_clipped_is_refused(
    run: FakeRun, spoil: Callable[[Loop], None], why: str
) -> None:
    loop = Loop(run, **GHOST)
    loop.step()
    before = loop.state()
    with refuses(why):
        spoil(loop)
        loop.optimizer.step()
    assert run.asked == [STEP]
    if spoil is not tied:
        assert all(map(torch.equal, before, loop.state()))


def test_layers_that_share_weight_are_refused_with_ghost_clipping_only(run: FakeRun) -> None:
    net = Net()
    net.second.weight = net.first.weight
    with refuses(r"first\.weight and second\.weight are one parameter"):
        Loop(run, net, **GHOST)
    net = Net()
    net.second.weight = net.first.weight
    loop = Loop(run, net)
    loop.step()
    assert run.asked == [STEP]


def freeze_late(loop: Loop) -> None:
    loop.loss().backward()
    loop.net.second.requires_grad_(requires_grad=False)


def no_backward(loop: Loop) -> None:
    loop.loss()


HOOKS: list[tuple[Callable[[Loop], None], str]] = [
    (unfrozen, "no gradients of single records: it was unfrozen"),
    (added, "no gradients of single records: it was unfrozen"),
    (freeze_late, "frozen parameter of the shape .* has a gradient"),
    (no_backward, "no backward pass was made since"),
]


@pytest.mark.parametrize(("spoil", "why"), HOOKS, ids=[spoil.__name__ for spoil, _ in HOOKS])
def test_step_that_would_move_more_than_was_clipped_is_refused(
    run: FakeRun, spoil: Callable[[Loop], None], why: str
) -> None:
    loop = Loop(run)
    loop.step()
    before = loop.state()
    spoil(loop)
    with refuses(why):
        loop.optimizer.step()
    assert all(map(torch.equal, before, loop.state()))
    assert run.asked == [STEP]


@pytest.mark.parametrize("terms", [{}, GHOST], ids=str)
def test_parameters_below_single_precision_are_refused(run: FakeRun, terms: dict[str, Any]) -> None:
    loop = Loop(run, **terms)
    loop.step()
    x, y = next(loop.batches)
    loop.optimizer.zero_grad()
    loop.net.to(torch.bfloat16)
    loop.criterion(loop.model(x.bfloat16()), y).backward()
    with refuses("torch.bfloat16, too coarse for the noise"):
        loop.optimizer.step()
    coarse = Net()
    with refuses("torch.bfloat16, too coarse for the noise"):
        Loop(run, coarse.bfloat16(), **terms)
    assert run.asked == [STEP]


def test_steps_by_scaler_are_refused_and_others_are_not(run: FakeRun) -> None:
    loop, scaler = Loop(run), torch.amp.GradScaler("cpu")
    scaler.scale(loop.loss()).backward()
    with refuses(r"GradScaler leaves out steps by what is in the data.*autocast with bfloat16"):
        scaler.step(loop.optimizer)
    discard_batch(loop.optimizer)
    loop.step()
    off = torch.amp.GradScaler("cpu", enabled=False)
    off.scale(loop.loss()).backward()
    off.step(loop.optimizer)
    assert run.asked == [STEP] * 3


@pytest.mark.parametrize("hook", [None, lambda _: None], ids=["none", "another"])
@pytest.mark.parametrize("terms", [{}, GHOST], ids=str)
def test_step_without_its_hook_is_not_released(run: FakeRun, terms: dict[str, Any], hook: object) -> None:
    loop = Loop(run, **terms)
    before = loop.state()
    loop.optimizer.step_hook = hook
    with refuses("step_hook is not the one that attach has set"):
        loop.step()
    assert all(map(torch.equal, before, loop.state()))
    assert run.asked == []


@pytest.mark.parametrize("norm", [math.nan, math.inf, 0.0, -1.0])
def test_clipping_norm_out_of_bounds_is_named(run: FakeRun, norm: float) -> None:
    loop = Loop(run)
    loop.optimizer.max_grad_norm = norm
    with pytest.raises(ValueError, match="max_grad_norm must be"):
        loop.step()
    assert run.asked == []


def losses(training: Training, loader: DataLoader[Any] | None = None) -> int:
    """Evaluate on a training's own loader; return the number of batches."""
    return len([training.criterion(training.model(x), y) for x, y in loader or training.loader])


def test_evaluation_without_gradients_costs_nothing_and_is_not_stepped(training: Training, run: FakeRun) -> None:
    with torch.no_grad():
        peeked = next(iter(training.loader))
    with refuses("was read for an evaluation"):
        training.step(peeked)
    batches = iter(training.loader)
    for batch in batches:
        with torch.no_grad():
            assert losses(training) == EPOCH
        training.step(batch)
        with torch.inference_mode():
            assert losses(training) == EPOCH
    assert run.asked == [STEP] * EPOCH


@pytest.fixture(params=["hooks", "ghost"])
def training(request: pytest.FixtureRequest, engine: PrivacyEngine, run: FakeRun) -> Training:
    return attached(engine, run, grad_sample_mode=request.param)


def test_evaluation_in_evaluation_mode_within_loop_costs_nothing(training: Training, run: FakeRun) -> None:
    for batch in training.loader:
        training.model.eval()
        assert losses(training) == EPOCH
        training.model.train()
        training.step(batch)
    assert run.asked == [STEP] * EPOCH


@pytest.mark.filterwarnings("default:A batch was fetched and not stepped")
def test_evaluation_with_gradients_after_loop_is_charged_for_its_first_batch(training: Training, run: FakeRun) -> None:
    training.epoch()
    training.model.eval()
    with pytest.warns(UserWarning, match=r"charged as drawn.* under torch\.no_grad\(\), which costs nothing"):
        assert losses(training) == EPOCH
    # Its mode may be that of the next epoch's first batch, too.
    for batch in training.loader:
        training.model.train()
        training.step(batch)
        training.model.eval()
    assert run.asked == [STEP] * (2 * EPOCH + 1)
    training.model.train()
    with refuses("Evaluate on this loader under torch.no_grad()"):
        losses(training)


def test_second_iteration_within_batch_is_named(training: Training, run: FakeRun) -> None:
    for batch in training.loader:
        with refuses(r"A second iteration over the training's loader.* torch\.no_grad\(\)"):
            losses(training)
        training.step(batch)
    assert run.asked == [STEP] * EPOCH
    # Where each is stepped before the other one draws, there may be two.
    assert len([*zip(map(training.step, training.loader), map(training.step, training.loader), strict=True)]) == EPOCH
    assert run.asked == [STEP] * 3 * EPOCH


@pytest.mark.filterwarnings("default:A batch was fetched and not stepped")
def test_batch_that_was_left_is_charged_and_warned_of_once(training: Training, run: FakeRun) -> None:
    def peek() -> None:
        for _batch in training.loader:
            break

    peek()
    with pytest.warns(UserWarning, match="was charged as drawn"):
        peek()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        peek()
    assert run.asked == [STEP] * 2
    discard_batch(training.optimizer)
    discard_batch(training.optimizer)
    assert run.asked == [STEP] * 3
    training.epoch()
    assert run.asked == [STEP] * (3 + EPOCH)


def test_empty_batches_cannot_be_skipped(engine: PrivacyEngine, run: FakeRun) -> None:
    """The count of steps alone had an epsilon of 5.44, where .085 was charged: 40 draws, 25 charges."""
    attach(engine, run, public_size=20)
    training = make_private(engine, DataLoader(TensorDataset(torch.randn(20, 4), torch.zeros(20).long()), 1))
    taken = 0
    with refuses("empty ones too"):
        for batch in (batch for _ in range(10) for batch in training.loader):
            if len(batch[0]):
                training.step(batch)
                taken += 1
    assert len(run.asked) == taken


def test_given_up_draw_is_charged_for_all_optimizers_and_recorded(engine: PrivacyEngine, run: FakeRun) -> None:
    attach(engine, run, releases_per_sample=2)
    training = make_private(engine)
    batches = iter(training.loader)
    training.step(next(batches))
    discard_batch(training.optimizer)
    next(batches)
    discard_batch(training.optimizer)
    assert len(run.asked) == 2
    assert run.asked[0] == run.asked[1]
    assert [item["count"] for item in engine.accountant.events] == [2]
