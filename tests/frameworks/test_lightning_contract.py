"""The contract of an adapter, for Lightning: a fit in a thread, which the script lets go on step by step."""

from collections.abc import Callable
from pathlib import Path
from queue import Queue
from tempfile import TemporaryDirectory
from threading import Thread, current_thread
from typing import Any

import lightning.pytorch as lightning

from epsilon_ledger.lightning import LedgerCallback
from tests.adapter_contract import AdapterContract
from tests.frameworks.test_opacus_contract import OpacusScript
from tests.sdk.fake_ledger import FakeRun

PATIENCE_SECONDS = 60


class StoppedError(Exception):
    """The fit has ended."""


class Model(lightning.LightningModule):
    """A model whose training step does what it is told to, until it is told to fetch the next batch."""

    def __init__(self, script: "LightningScript") -> None:
        super().__init__()
        self.automatic_optimization = False
        self.script, self.net = script, script.model

    def training_step(self, batch: Any) -> None:  # noqa: ANN401 - of any loader
        self.script.batch = batch
        self.script.answers.put(None)
        while (action := self.script.actions.get()) is not None:
            action()
            self.script.answers.put(None)

    def configure_optimizers(self) -> Any:  # noqa: ANN401 - as Lightning has it
        return self.script.optimizer


class LightningScript(OpacusScript):
    """What it does is done in the thread of the fit; an error ends the fit, and is raised here."""

    def __init__(self, run: FakeRun, **terms: Any) -> None:  # noqa: ANN401 - passed on
        super().__init__(run, **terms)
        self.actions: Queue[Callable[[], object] | None] = Queue()
        self.answers: Queue[BaseException | None] = Queue()
        self.callback = LedgerCallback(run)
        quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
        self.trainer: Any = lightning.Trainer(callbacks=[self.callback], accelerator="cpu", max_epochs=10, **quiet)
        self.thread: Thread | None = None
        self.folder = TemporaryDirectory()
        self.path: str | None = None
        """Checkpoint that the fit begins from."""

    def fit(self) -> None:
        try:
            self.trainer.fit(Model(self), self.loader, ckpt_path=self.path)
            self.answers.put(self.callback.refusal or StoppedError())
        except BaseException as error:  # noqa: BLE001 - the script's thread raises it
            self.answers.put(error)

    def wait(self) -> None:
        error = self.answers.get(timeout=PATIENCE_SECONDS)
        if error is not None:
            self.thread = None
            raise error

    def act(self, action: Callable[[], object] | None) -> None:
        if self.thread is None:
            raise StoppedError
        if current_thread() is self.thread:
            if action is not None:
                action()
            return
        self.actions.put(action)
        self.wait()

    def draw(self) -> None:
        if self.thread is None:
            self.thread = Thread(target=self.fit)
            self.thread.start()
            self.wait()
        else:
            self.act(None)
        self.drawn += 1

    def step(self) -> None:
        self.perform(super().take)

    def perform(self, action: Callable[[], object]) -> None:
        self.act(action)
        if self.callback.refusal is not None:
            raise self.callback.refusal

    def checkpoint(self) -> object:
        path = Path(self.folder.name) / "saved"
        self.act(lambda: self.trainer.save_checkpoint(path))
        return path.read_bytes(), self.random_states()

    def restore(self, state: object) -> None:
        saved: Any = state
        path = Path(self.folder.name) / "loaded"
        path.write_bytes(saved[0])
        self.path = str(path)
        self.set_random_states(saved[1])

    def evaluate(self) -> None:
        self.act(super().evaluate)

    def end(self) -> None:
        while self.thread is not None:
            self.trainer.should_stop = True
            self.actions.put(None)
            try:
                self.wait()
            except BaseException:  # noqa: BLE001 - whatever ended it
                return


class TestLightning(AdapterContract):
    script = LightningScript
    seed = staticmethod(lambda: lightning.seed_everything(42, verbose=False))
