"""The contract of an adapter, for MindSpore with MindArmour: a pass of one batch is a step, charged before it."""

# ruff: noqa: ANN401 - what the frameworks give and take has no types here

from contextlib import suppress
from queue import Queue
from threading import Thread
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.adapter_contract import AdapterContract, Script
from tests.frameworks import test_mindspore
from tests.sdk.fake_ledger import FakeRun

pytest.importorskip("mindspore")
training: Any = test_mindspore
"""With what it has imported of MindSpore and MindArmour, where they are installed."""

PATIENCE_SECONDS = 120
RECORDS = 4


class StoppedError(Exception):
    """The training has ended, or is ended by its callback."""


class Told(training.Callback):
    """Callback that does what the script tells it to, before and after each step, until it is told to go on."""

    def __init__(self, script: "PassScript") -> None:
        super().__init__()
        self.script = script

    def on_train_step_begin(self, _: Any) -> None:
        self.script.obey("step")

    def on_train_step_end(self, _: Any) -> None:
        self.script.note((self.script.before - self.script.parameters()) * RECORDS)
        self.script.obey("draw")


class PassScript(Script):
    bound = 0.5

    def __init__(self, run: FakeRun, **terms: Any) -> None:
        super().__init__(run, **terms)
        run.ledger.run["neighboring_relation"] = "replace_one"
        run.refresh()
        nn, mechanisms = training.nn, training.theirs.NoiseMechanismsFactory
        self.network = nn.Dense(1, 3, has_bias=False)
        noise = mechanisms.create("Gaussian", norm_bound=self.bound, initial_noise_multiplier=self.noise_multiplier)
        self.model = training.theirs.DPModel(
            micro_batches=RECORDS,
            norm_bound=self.bound,
            noise_mech=noise,
            network=self.network,
            loss_fn=nn.MSELoss(),
            optimizer=nn.SGD(self.network.trainable_params(), 1.0),
        )
        far = np.float32(1e3 * self.canary)
        self.rows = [(np.full(1, far * (place == 0)), np.full(3, -far * (place == 0))) for place in range(RECORDS)]
        self.ledger = training.adapter.LedgerCallback(run)
        self.actions: Queue[str] = Queue()
        self.answers: Queue[BaseException | None] = Queue()
        self.thread: Thread | None = None
        self.before = self.parameters()

    # In the thread of the training.

    def train(self) -> None:
        try:
            data = training.ds.GeneratorDataset(self.rows, ["x", "y"], shuffle=True).batch(RECORDS)
            self.model.train(50, data, callbacks=[Told(self), self.ledger], dataset_sink_mode=False)
            self.answers.put(self.ledger.refusal or StoppedError())
        except BaseException as error:  # noqa: BLE001 - the script's thread raises it
            self.answers.put(error)

    def obey(self, awaited: str) -> None:
        self.before = self.parameters()
        self.answers.put(None)
        if self.actions.get() != awaited:
            raise StoppedError

    # In the thread of the script.

    def wait(self) -> None:
        error = self.answers.get(timeout=PATIENCE_SECONDS)
        if error is not None:
            self.thread = None
            raise error

    def draw(self) -> None:
        if self.thread is None:
            self.thread = Thread(target=self.train)
            self.thread.start()
        else:
            self.actions.put("draw")
        self.wait()
        self.drawn += 1

    def step(self) -> None:
        if self.thread is None:
            raise StoppedError
        self.actions.put("step")
        self.wait()

    def parameters(self) -> NDArray[Any]:
        return np.asarray(self.network.weight.asnumpy().copy().flatten())

    def checkpoint(self) -> object:
        return self.parameters()

    def restore(self, state: Any) -> None:
        self.network.weight.set_data(training.mindspore.Tensor(state.reshape(3, 1)))

    def evaluate(self) -> None:
        data = training.ds.GeneratorDataset(self.rows, ["x", "y"]).batch(RECORDS)
        assert len(list(data.create_tuple_iterator())) == 1

    def end(self) -> None:
        while self.thread is not None:
            self.actions.put("end")
            with suppress(BaseException):
                self.wait()


class TestPasses(AdapterContract):
    script = PassScript
    NOT_APPLICABLE: ClassVar = {
        "test_noise_that_is_brought_back_is_not_released_again": "without a seed, which is refused, it has no state",
        "test_repeated_record_moves_release_by_one_norm_or_stops_training": "a data set that may do so is refused",
        "test_added_parameters_are_clipped_or_stop_training": "its parameters are those of the cell, for good",
        "test_sample_is_released_once_for_its_charge": "Model.train steps each batch once",
        "test_skipped_sample_is_charged_or_stops_training": "its batches are not sampled: a pass has them all",
    }

    @pytest.fixture(autouse=True)
    def _on_processor(self, monkeypatch: pytest.MonkeyPatch) -> None:
        training.run_on_processor(monkeypatch)
