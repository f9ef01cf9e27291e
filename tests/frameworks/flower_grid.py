"""Flower's clients within this process: needs Flower, which only processes of `tests.frameworks.flower` can import."""

# ruff: noqa: ANN401 - what the framework gives and takes has no types here

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

App = Callable[[Message, Context], Message]


class LocalGrid(Grid):
    """Clients that answer at once."""

    def __init__(self, app: App, clients: int) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.app = app
        self.contexts = {
            node: Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={})
            for node in range(1, clients + 1)
        }
        self.asked: list[list[Message]] = []
        self._ids = count()

    def absent(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    run = property(absent)
    set_run = create_message = push_messages = pull_messages = absent

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        del timeout
        asked = list(messages)
        self.asked.append(asked)
        return [self._answer(message) for message in asked]

    def _answer(self, message: Message) -> Message:
        vars(message)["_metadata"].__dict__["_message_id"] = str(next(self._ids))
        try:
            return self.app(message, self.contexts[message.metadata.dst_node_id])
        except Exception as error:  # noqa: BLE001 - as Flower does
            return Message(Error(code=1, reason=repr(error)), reply_to=message)


def arrays(*values: Any) -> ArrayRecord:
    """Make a record of arrays."""
    return ArrayRecord({f"w{index}": Array(np.asarray(value)) for index, value in enumerate(values)})


def shifted_by(shift: Callable[[int], Any], metrics: dict[str, Any] | None = None) -> App:
    """Make an app that adds something to each array, by the number of its client."""

    def app(message: Message, context: Context) -> Message:
        (sent,) = message.content.array_records.values()
        moved = {
            name: Array(np.asarray(array.numpy() + shift(context.node_id), dtype=array.numpy().dtype))
            for name, array in sent.items()
        }
        told = MetricRecord(metrics or {"num-examples": 1, "loss": 0.5})
        return Message(RecordDict({"arrays": ArrayRecord(moved), "metrics": told}), reply_to=message)

    return app
