"""The contract of an adapter, for a Trainer: a training in a thread, which the script lets go on step by step."""

# ruff: noqa: ANN401 - a Trainer of a class that is made for it, and Transformers' signatures

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Queue
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

from epsilon_ledger.transformers import make_private
from tests.adapter_contract import AdapterContract, Script
from tests.frameworks.language_models import ARGUMENTS
from tests.sdk.fake_ledger import FakeRun, N

PATIENCE_SECONDS = 60
FAR = 1e6


class StoppedError(Exception):
    """The training has ended, or is ended by its callback."""


class Network(nn.Module):
    """A layer that is trained, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.trained, self.frozen = nn.Linear(1, 3, bias=False), nn.Linear(1, 3, bias=False)
        self.frozen.requires_grad_(requires_grad=False)

    def forward(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.trained(inputs) + self.frozen(inputs)}


class Told(TrainerCallback):
    """Callback that does what the script tells it to, before and after each step, until it is told to go on."""

    def __init__(self, script: "TrainerScript") -> None:
        self.script = script

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.script.obey(drawn=True)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.script.obey(drawn=False)


class TrainerScript(Script):
    bound = 0.5

    def __init__(self, run: FakeRun, **terms: Any) -> None:
        super().__init__(run, **terms)
        self.folder, self.saved = TemporaryDirectory(), TemporaryDirectory()
        self.network = Network()
        records = [{"inputs": torch.tensor([FAR * self.canary * (place == 0)])} for place in range(N)]
        settings = ARGUMENTS | {"per_device_train_batch_size": N, "gradient_accumulation_steps": 1, "max_steps": 50}
        self.trainer: Any = Trainer(
            self.network,
            TrainingArguments(self.folder.name, **settings),
            train_dataset=records,
            callbacks=[Told(self)],
        )
        make_private(
            self.trainer,
            run,
            noise_multiplier=self.noise_multiplier,
            max_grad_norm=self.bound,
            record_losses=lambda outputs, _: outputs["logits"].sum(dim=1),
        )
        self.actions: Queue[Callable[[], object] | str] = Queue()
        self.answers: Queue[BaseException | None] = Queue()
        self.thread: Thread | None = None
        self.path: str | None = None
        """Checkpoint that the training begins from."""
        self.inputs: Any = None
        self.states: tuple[torch.Tensor, ...] = ()
        computed = self.trainer.training_step

        def training_step(model: Any, inputs: Any, *given: Any) -> Any:
            self.inputs = inputs
            return computed(model, inputs, *given)

        self.trainer.training_step = training_step

    # In the thread of the training.

    def train(self) -> None:
        try:
            self.trainer.train(resume_from_checkpoint=self.path)
            self.answers.put(self.trainer.refusal or StoppedError())
        except BaseException as error:  # noqa: BLE001 - the script's thread raises it
            self.answers.put(error)

    def obey(self, *, drawn: bool) -> None:
        if not drawn and self.trainer.refusal is not None:
            return  # and the training ends
        self.answers.put(None)
        while True:
            action = self.actions.get()
            if action == ("step" if drawn else "draw"):
                if drawn:
                    self.watch_optimizer()
                return
            if isinstance(action, str):  # another sample, or another step on this one
                if drawn:
                    raise StoppedError
                self.step_again()
            else:
                action()
            self.answers.put(None)

    def watch_optimizer(self) -> None:
        optimizer = self.trainer.optimizer.optimizer
        self.states = self.random_states()
        if not optimizer.original_optimizer._optimizer_step_pre_hooks:
            optimizer.original_optimizer.register_step_pre_hook(lambda *_: self.note(self.release()))

    def release(self) -> NDArray[Any]:
        """Return the gradients that are about to be applied, as the sum that they were."""
        optimizer = self.trainer.optimizer.optimizer
        groups = optimizer.original_optimizer.param_groups
        found = [each.grad.flatten() for group in groups for each in group["params"] if each.grad is not None]
        return np.asarray(torch.cat(found).numpy() * optimizer.expected_batch_size)

    def step_again(self) -> None:
        self.trainer.training_step(self.network, self.inputs)
        self.trainer.optimizer.step()

    # In the thread of the script.

    def tell(self, action: Callable[[], object] | str) -> None:
        if self.thread is None:
            raise StoppedError
        self.actions.put(action)
        self.wait()

    def wait(self) -> None:
        error = self.answers.get(timeout=PATIENCE_SECONDS)
        if error is not None:
            self.thread = None
            raise error

    def draw(self) -> None:
        try:
            if self.thread is not None:
                self.tell("draw")
        except StoppedError:  # it skips the sample, and trains again
            self.thread = None
        if self.thread is None:
            self.thread = Thread(target=self.train)
            self.thread.start()
            self.wait()
        self.drawn += 1

    def step(self) -> None:
        self.tell("step")

    def parameters(self) -> NDArray[Any]:
        return np.concatenate([each.detach().numpy().flatten() for each in self.network.parameters()])

    def random_states(self) -> tuple[torch.Tensor, ...]:
        own = self.trainer.optimizer.optimizer.generator
        return (torch.get_rng_state(), *([] if own is None else [own.get_state()]))

    def repeat_noise(self) -> None:
        torch.set_rng_state(self.states[0])
        if len(self.states) > 1:
            self.trainer.optimizer.optimizer.generator.set_state(self.states[1])

    def checkpoint(self) -> object:
        self.tell(lambda: self.trainer._save_checkpoint(self.network, None))
        shutil.copytree(self.folder.name, self.saved.name, dirs_exist_ok=True)
        return next(Path(self.saved.name).glob("checkpoint-*"))

    def restore(self, state: object) -> None:
        self.path = str(state)

    def add_parameters(self) -> None:
        self.tell(self.unfreeze)

    def unfreeze(self) -> None:
        self.network.frozen.requires_grad_(requires_grad=True)
        self.trainer.optimizer.add_param_group({"params": list(self.network.frozen.parameters())})

    def evaluate(self) -> None:
        self.tell(lambda: self.trainer.evaluate(self.trainer.train_dataset))

    def end(self) -> None:
        while self.thread is not None:
            self.trainer.control.should_training_stop = True
            self.trainer.args.max_steps = 0
            self.actions.put("draw")
            with suppress(BaseException):  # whatever ended it
                self.wait()
        self.folder.cleanup()
        self.saved.cleanup()


class TestTrainer(AdapterContract):
    script = TrainerScript
    seed = staticmethod(lambda: set_seed(42))
    NOT_APPLICABLE = {  # noqa: RUF012 - as in the base class
        "test_repeated_record_moves_release_by_one_norm_or_stops_training": "its samplers draw each place once",
    }
