"""Generators of noise and samples whose random numbers nobody can repeat."""

from collections.abc import Callable
from secrets import randbits, token_bytes
from typing import Any, Final

import torch
from opacus.optimizers import DPOptimizer

Draws = Callable[[Any, Callable[[], Any]], Any]
"""Calls what draws random numbers for an optimizer or a sampler, and returns its result."""

_WORDS: Final = slice(24, 24 + 8 * 624)
"""Bytes of a CPU generator's state that hold the twister's words of 32 bits, each in 64."""


class OwnGenerator:
    """A generator that belongs to an optimizer or a sampler, and repeats no random number.

    Its state comes from the operating system's entropy. A seed or a checkpoint may bring an earlier state back: before
    each use, a state that is not what the last use left is filled anew. So scripts may load what they have saved.

    Args:
        holder: draws from its attribute `generator`.
        device: of the random numbers.
        secure: whether the holder is in Opacus' secure mode, and keeps the generator that it has. torchcsprng's have no
            state; another one's is filled as above.
    """

    def __init__(self, holder: Any, device: torch.device, *, secure: bool) -> None:  # noqa: ANN401 - an optimizer or a sampler
        given: torch.Generator | None = holder.generator
        self._kept = given is not None and (secure or not _has_state(given))
        self._generator = given if given is not None and self._kept else fresh_generator(device)
        self._stateless = self._kept and not _has_state(self._generator)
        self._left: torch.Tensor | None = None if self._kept else self._state()
        holder.generator = self._generator

    def draw(self, holder: Any, numbers: Callable[[], Any]) -> Any:  # noqa: ANN401 - as above, and any result
        """Let the holder draw from this generator, from a state that was never used."""
        if not self._stateless and (self._left is None or not torch.equal(self._left, self._generator.get_state())):
            _fill(self._generator)
        holder.generator = self._generator
        try:
            return numbers()
        finally:
            self._left = self._state()

    def follow(self, device: torch.device) -> None:
        """Draw on another kind of device from now on, to which parameters have moved."""
        if not self._kept and device.type != self._generator.device.type:
            self._generator = fresh_generator(device)
            self._left = self._state()

    def _state(self) -> torch.Tensor | None:
        return None if self._stateless else self._generator.get_state()


class OwnNoise:
    """The noise of an optimizer, from its own generator; created by `keep_noise`.

    It replaces the optimizer's `add_noise`, in which all kinds draw: adaptive clipping the noise of its count, too.
    """

    def __init__(self, optimizer: DPOptimizer) -> None:
        self._optimizer = optimizer
        self._add_noise = optimizer.add_noise
        self._generator = OwnGenerator(optimizer, _device_of(optimizer), secure=optimizer.secure_mode)
        optimizer.add_noise = self.add_noise

    def add_noise(self) -> None:
        """Add noise as Opacus does."""
        self._generator.follow(_device_of(self._optimizer))
        self._generator.draw(self._optimizer, self._add_noise)


def keep_noise(optimizer: DPOptimizer) -> None:
    """Let an optimizer's noise come from a generator of its own, unless it does already."""
    if not isinstance(getattr(optimizer.add_noise, "__self__", None), OwnNoise):
        OwnNoise(optimizer)


def private_samples(sampler: Any, *, poisson: bool, secure: bool) -> Draws:  # noqa: ANN401 - any sampler
    """Give a sampler random numbers of its own.

    Args:
        sampler: of independent samples.
        poisson: whether it is one of Opacus. Another one draws from its `generator` or from torch's default one; what
            it draws from elsewhere cannot be replaced.
        secure: whether it draws for an optimizer in Opacus' secure mode.
    """
    given = getattr(sampler, "generator", None)
    if poisson or isinstance(given, torch.Generator):
        device = torch.get_default_device() if given is None else given.device
        return OwnGenerator(sampler, device, secure=secure).draw
    return draw_by_private_default


def draw_plainly(_: object, numbers: Callable[[], Any]) -> Any:  # noqa: ANN401 - any result
    """Draw from whatever a script has seeded."""
    return numbers()


def draw_by_private_default(_: object, numbers: Callable[[], Any]) -> Any:  # noqa: ANN401 - any result
    """Draw from a fresh state of torch's default generator, which then goes on as if nothing had been drawn."""
    outside = torch.get_rng_state()
    _fill(torch.default_generator)
    try:
        return numbers()
    finally:
        torch.set_rng_state(outside)


def fresh_generator(device: torch.device) -> torch.Generator:
    """Make a generator whose state nobody knows and no checkpoint keeps."""
    generator = torch.Generator(device)
    _fill(generator)
    return generator


def _fill(generator: torch.Generator) -> None:
    """Fill a generator's state with the operating system's entropy."""
    if generator.device.type != "cpu":
        generator.manual_seed(randbits(63))
        return
    # Of a seed torch's Mersenne Twister uses 32 bits, which can be tried out: fill all of its state.
    state = torch.Generator().get_state()
    words = state[_WORDS].view(torch.int64)
    words.copy_(torch.frombuffer(bytearray(token_bytes(4 * len(words))), dtype=torch.uint32))
    generator.set_state(state)


def _has_state(generator: torch.Generator) -> bool:
    """Return whether a script can read a generator's state, and bring it back."""
    try:
        generator.get_state()
    except RuntimeError:  # so do those of torchcsprng
        return False
    return True


def _device_of(optimizer: DPOptimizer) -> torch.device:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad:
                device: torch.device = parameter.device
                return device
    return torch.device("cpu")
