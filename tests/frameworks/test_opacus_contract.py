"""The contract of an adapter, for each way to clip that Opacus has."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from epsilon_ledger.opacus import attach
from tests.adapter_contract import AdapterContract, Script
from tests.frameworks.conftest import ADAPTIVE, new_engine
from tests.frameworks.test_opacus_canaries import FarLoss
from tests.sdk.fake_ledger import BATCH, FakeRun, N

BOUND, WIDTH, HIDDEN = 0.5, 64, 4


def network() -> nn.Sequential:
    """Two layers that are trained, and a frozen one."""
    sizes = (WIDTH, HIDDEN, HIDDEN, 1)
    made = nn.Sequential(*(nn.Linear(*size, bias=False) for size in pairwise(sizes)))
    made[2].requires_grad_(requires_grad=False)
    return made


class AllTwice:
    """A sampler of one batch of all records, of which it has the first one twice."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, *range(N)]])

    def __len__(self) -> int:
        return 1


class OpacusScript(Script):
    bound = BOUND
    terms: ClassVar[dict[str, Any]] = {"max_grad_norm": BOUND}

    def __init__(self, run: FakeRun, **terms: Any) -> None:  # noqa: ANN401 - passed on
        super().__init__(run, **terms)
        engine, self.network = new_engine(), network()
        attach(engine, self.payer())
        # Records without a gradient, and the first one with a large one, of its first input in both layers.
        x, y = torch.zeros(N, WIDTH), torch.zeros(N, 1)
        x[0, 0], y[0] = 1e4 * self.canary, 1e6 * self.canary
        made = engine.make_private(
            module=self.wrapped(),
            optimizer=torch.optim.SGD(self.network.parameters(), lr=1e-3),
            data_loader=DataLoader(TensorDataset(x, y), BATCH, num_workers=self.workers()),
            criterion=FarLoss(),
            noise_multiplier=self.noise_multiplier,
            **self.terms,
        )
        self.model, self.optimizer, self.loader = made[0], made[1], made[-1]
        self.criterion = made[2] if len(made) == 4 else FarLoss()
        self.loader.batch_sampler.sample_rate = 1.0
        self.batches: Iterator[Any] = iter(())
        self.batch: Any = None
        self.states: tuple[torch.Tensor, ...] = ()
        # What is applied, exactly: the parameters round it.
        self.optimizer.original_optimizer.register_step_pre_hook(lambda *_: self.note(self.release()))

    def payer(self) -> FakeRun | None:
        """Return the run that this process charges."""
        return self.run

    def wrapped(self) -> nn.Module:
        return self.network

    def workers(self) -> int:
        """Return how many processes fetch the batches: starting them takes long."""
        return 0 if self.dice is None or self.dice.random() < 0.97 else 2

    def release(self) -> NDArray[Any]:
        """Return the gradients that are about to be applied, as the sum that they were."""
        groups = self.optimizer.original_optimizer.param_groups
        found = [each.grad.flatten() for group in groups for each in group["params"] if each.grad is not None]
        assert min(torch.finfo(each.dtype).bits for each in found) >= 32, "too coarse for the noise"
        return np.asarray(torch.cat(found).numpy() * self.optimizer.expected_batch_size)

    def draw(self) -> None:
        self.batch = next(self.batches, None)
        if self.batch is None:
            self.batches = iter(self.loader)
            self.batch = next(self.batches)
        self.drawn += 1
        self.rate = getattr(self.loader.batch_sampler, "sample_rate", 1.0)

    def step(self) -> None:
        self.take()

    def take(self) -> None:
        self.states = self.random_states()
        x, y = self.batch
        self.optimizer.zero_grad()
        self.criterion(self.model(x), y).backward()
        self.optimizer.step()

    def quiet(self, release: NDArray[Any]) -> NDArray[Any]:
        return release[: WIDTH * HIDDEN].reshape(HIDDEN, WIDTH)[:, 1:].ravel()

    def parameters(self) -> NDArray[Any]:
        return np.concatenate([each.detach().numpy().flatten() for each in self.network.parameters()])

    def random_states(self) -> tuple[torch.Tensor, ...]:
        own = self.optimizer.generator
        return (torch.get_rng_state(), *([] if own is None else [own.get_state()]))

    def set_random_states(self, states: tuple[torch.Tensor, ...]) -> None:
        torch.set_rng_state(states[0])
        if len(states) > 1:
            self.optimizer.generator.set_state(states[1])

    def repeat_noise(self) -> None:
        self.set_random_states(self.states)

    def checkpoint(self) -> object:
        return self.network.state_dict(), self.optimizer.state_dict(), self.random_states()

    def restore(self, state: object) -> None:
        saved: Any = state
        self.network.load_state_dict(saved[0])
        self.optimizer.load_state_dict(saved[1])
        self.set_random_states(saved[2])

    def add_parameters(self) -> None:
        self.network[2].requires_grad_(requires_grad=True)

    def repeat_record(self) -> None:
        sampler: Any = AllTwice()
        self.batches = iter(())
        self.loader = DataLoader(self.loader.dataset, batch_sampler=sampler)
        attach(self.optimizer, self.payer(), data_loader=self.loader, sampling_probability=1.0, module=self.model)

    def evaluate(self) -> None:
        self.model.eval()
        with torch.no_grad():
            losses = [float(FarLoss()(self.model(x), y)) for x, y in self.loader]
        self.model.train()
        assert np.isfinite(losses).all()


class TestFlat(AdapterContract):
    script = OpacusScript
    seed = staticmethod(lambda: torch.manual_seed(7))


class SeededScript(OpacusScript):
    """A script that gives a generator of its own, whose seed is the same in every process."""

    def __init__(self, run: FakeRun, **terms: Any) -> None:  # noqa: ANN401 - passed on
        self.terms = OpacusScript.terms | {"noise_generator": torch.Generator()}  # type: ignore[misc]
        super().__init__(run, **terms)


class TestSeeded(TestFlat):
    script = SeededScript


class PerLayerScript(OpacusScript):
    terms: ClassVar = {"clipping": "per_layer", "max_grad_norm": [0.3, 0.4]}


class TestPerLayer(TestFlat):
    script = PerLayerScript


class GhostScript(OpacusScript):
    terms: ClassVar = {"grad_sample_mode": "ghost", "max_grad_norm": BOUND}


class TestGhost(TestFlat):
    script = GhostScript


class AdaptiveScript(OpacusScript):
    # The norm moves by less than the tests allow for.
    terms: ClassVar = ADAPTIVE | {"clipbound_learning_rate": 1e-3, "max_grad_norm": BOUND}


class TestAdaptive(TestFlat):
    script = AdaptiveScript
