"""Devices of the example of local differential privacy, in processes of their own.

A device holds one handwritten digit. It classifies the digit with the model that the cloud sends, adds noise to the
output, and sends one report. Digits, outputs and noise exist only in the device's process: the cloud sees reports. A
process here holds many devices, because a thousand processes would only cost memory.

A device has no key of the ledger, and does not trust the cloud that it was asked. It keeps its own total, and sends
nothing beyond the limit that its owner agreed to.
"""

import multiprocessing
import os
import subprocess
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from epsilon_ledger import Event
from epsilon_ledger.mechanisms import LaplaceNoise

Floats = NDArray[np.float64]
PrivacyType = Literal["LAPLACE", "NOT_ENCRYPT"]
EvalType = Literal["SILHOUETTE_SCORE", "CALINSKI_HARABASZ_SCORE"]
Content = Literal["output", "confidence"]

MAX_DEVICES = 1_000
"""The digits after these are public: the model learns from them."""
CLASSES = 10
SENSITIVITIES: dict[Content, float] = {"output": 2.0, "confidence": 1.0 - 1.0 / CLASSES}
"""In L1. All the weight of an output may move, which changes two entries by 1. The largest entry is at least 1/10."""


@dataclass(frozen=True)
class Request:
    """Request for one report of each device.

    Args:
        number: which request it is; a repeated one has the same number.
        weights: of the model, (65, 10).
        content: the softmax output, (10,), or its largest entry alone, (1,).
        epsilon: of the report; None: without noise.
    """

    number: str
    weights: Floats
    content: Content
    epsilon: float | None


class DeviceLimitError(Exception):
    """A device's own limit is reached: it sends nothing."""


def softmax(scores: Floats) -> Floats:
    """Compute probabilities along the last axis."""
    likely = np.exp(scores - scores.max(axis=-1, keepdims=True))
    found: Floats = likely / likely.sum(axis=-1, keepdims=True)
    return found


def with_one(pixels: Floats) -> Floats:
    """Scale (n, 64) pixels to [0, 1], and append a one for the bias."""
    return np.column_stack([pixels / 16.0, np.ones(len(pixels))])


def noise_of(epsilon: float, content: Content = "output") -> LaplaceNoise:
    """Create the noise of one report."""
    return LaplaceNoise(epsilon=epsilon, l1_sensitivity=SENSITIVITIES[content], neighboring_relation="replace_one")


class Device:
    """A device with one digit.

    Args:
        features: (65,) pixels and a one.
        limit: total epsilon of all its reports.
    """

    def __init__(self, features: Floats, limit: float) -> None:
        self._features = features
        self._left = limit
        self._asked = 0.0
        self._last: tuple[str, Floats] | None = None

    def answer(self, request: Request) -> Floats:
        """Return the report, (10,) or (1,).

        A repeated request gets the same report again: fresh noise would be a further release.

        Raises:
            DeviceLimitError: the report does not fit the device's own limit.
        """
        if self._last is None or self._last[0] != request.number:
            output = softmax(self._features @ request.weights)
            values = output if request.content == "output" else output.max(keepdims=True)
            if request.epsilon is not None:
                self._asked = request.epsilon
                values = noise_of(request.epsilon, request.content).release(values[np.newaxis], run=self)[0]
            # Without noise only because scikit-learn's digits are public: a real device has no such branch.
            self._last = request.number, values
        return self._last[1]

    def authorize(self, count: int = 1, *, event: Event | None = None) -> None:
        """Count a report against the device's own limit, before its noise is drawn."""
        if count * self._asked > self._left:
            raise DeviceLimitError(f"{event} would exceed this device's limit: epsilon {self._left:g} is left")
        self._left -= count * self._asked


def run_devices(first: int, last: int, limit: float, line: Connection) -> None:
    """Run a group of devices: answer each request by one message of each device.

    Args:
        first: number of the first device.
        last: number after the last one.
        limit: total epsilon of each.
        line: to the cloud; None ends the group.
    """
    pixels, _ = load_digits(return_X_y=True)
    devices = [Device(features, limit) for features in with_one(pixels[first:last])]
    while (request := line.recv()) is not None:
        for device in devices:
            try:
                report = device.answer(request).tobytes()
            except DeviceLimitError:
                report = b""
            line.send_bytes(report)


class Devices(AbstractContextManager["Devices"]):
    """The cloud's view of the devices: requests go out, reports come in.

    Args:
        count: number of devices.
        processes: that hold them.
        limit: total epsilon of each device.
    """

    def __init__(self, count: int, processes: int, limit: float) -> None:
        bounds = np.linspace(0, count, processes + 1).astype(int).tolist()
        # Nothing of the cloud's reaches a device but its requests: not the key, either.
        environment = {name: value for name, value in os.environ.items() if name != "EPSILON_LEDGER_API_KEY"}
        self._groups: list[tuple[Connection, int]] = []
        self._processes = []
        for first, last in pairwise(bounds):
            ours, theirs = multiprocessing.Pipe()
            command = [sys.executable, __file__, *map(str, (first, last, limit, theirs.fileno()))]
            self._processes.append(subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()]))  # noqa: S603
            theirs.close()
            self._groups.append((ours, last - first))

    def collect(self, request: Request) -> Floats:
        """Ask all devices; return the reports of those within their own limits, (n_reports, 10) or (n_reports, 1)."""
        for line, _ in self._groups:
            line.send(request)
        answers = [line.recv_bytes() for line, size in self._groups for _ in range(size)]
        return np.array([np.frombuffer(answer) for answer in answers if answer])

    def __exit__(self, kind: type[BaseException] | None, *_details: object) -> None:
        """End the processes."""
        for (line, _), process in zip(self._groups, self._processes, strict=True):
            if kind is None:
                line.send(None)
            else:  # it may be in the middle of its reports
                process.terminate()
            process.wait()
            line.close()


if __name__ == "__main__":
    run_devices(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), Connection(int(sys.argv[4])))
