"""Optimizers of arrays under MindSpore's names, and MindArmour's factory of private ones."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from epsilon_ledger._mindarmour.frameworks import is_of_mindspore, of_mindspore
from epsilon_ledger._mindarmour.noise import NoiseGaussianRandom, NoiseMechanismsFactory
from epsilon_ledger._wire.coercion import real, whole

Floats = NDArray[np.float64]


class ArrayOptimizer(ABC):
    """Optimizer that a call with gradients lets move its parameters.

    Args:
        params: float arrays, updated in place.
        learning_rate: in (0, 1e6]; may be changed.

    Raises:
        ValueError: a parameter is no writeable float array, or the rate is out of its bounds.
    """

    def __init__(self, params: Sequence[NDArray[Any]], learning_rate: float) -> None:
        self.params = list(params)
        for part in self.params:
            if getattr(getattr(part, "dtype", None), "kind", None) != "f" or not part.flags.writeable:
                raise ValueError(f"A parameter is {type(part).__name__}, but it must be a writeable float array.")
        self.learning_rate = real("learning_rate", learning_rate, 0.0, 1e6, above=True)

    def __call__(self, gradients: Sequence[Floats]) -> None:
        """Move the parameters.

        Args:
            gradients: shaped as the parameters.
        """
        for place, (part, gradient) in enumerate(zip(self.params, gradients, strict=True)):
            part[...] -= (self.learning_rate * self._direction(place, gradient)).astype(part.dtype)

    @abstractmethod
    def _direction(self, place: int, gradient: Floats) -> Floats:
        """Return the direction of parameter `place`, and advance its moments."""


class SGD(ArrayOptimizer):
    """Gradient descent, with momentum if asked.

    Args:
        params: as for `ArrayOptimizer`.
        learning_rate: as for `ArrayOptimizer`.
        momentum: in [0, 1).
    """

    def __init__(self, params: Sequence[NDArray[Any]], learning_rate: float = 0.1, momentum: float = 0.0) -> None:
        super().__init__(params, learning_rate)
        self._momentum = real("momentum", momentum, 0.0, 1.0, below=True)
        self._velocities = [np.zeros(part.shape) for part in self.params]

    def _direction(self, place: int, gradient: Floats) -> Floats:
        self._velocities[place] = self._momentum * self._velocities[place] + gradient
        return self._velocities[place]


class Momentum(SGD):
    """Gradient descent with momentum.

    Args:
        params: as for `ArrayOptimizer`.
        learning_rate: as for `ArrayOptimizer`.
        momentum: in [0, 1).
    """

    def __init__(self, params: Sequence[NDArray[Any]], learning_rate: float, momentum: float) -> None:
        super().__init__(params, learning_rate, momentum)


class Adam(ArrayOptimizer):
    """Adam.

    Args:
        params: as for `ArrayOptimizer`.
        learning_rate: as for `ArrayOptimizer`.
        beta1: decay rate of the first moments, in [0, 1).
        beta2: decay rate of the second moments, in [0, 1).
        eps: added to the square root of the second moments, in (0, 1].

    Source:
        Kingma, Ba 2015 (arXiv 1412.6980), Algorithm 1.
    """

    def __init__(
        self,
        params: Sequence[NDArray[Any]],
        learning_rate: float = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
    ) -> None:
        super().__init__(params, learning_rate)
        self._betas = real("beta1", beta1, 0.0, 1.0, below=True), real("beta2", beta2, 0.0, 1.0, below=True)
        self._stability = real("eps", eps, 0.0, 1.0, above=True)
        self._moments = [(0, np.zeros(part.shape), np.zeros(part.shape)) for part in self.params]

    def _direction(self, place: int, gradient: Floats) -> Floats:
        one, two = self._betas
        step, first, second = self._moments[place]
        step, first, second = step + 1, one * first + (1 - one) * gradient, two * second + (1 - two) * gradient**2
        self._moments[place] = step, first, second
        return first / (1 - one**step) / (np.sqrt(second / (1 - two**step)) + self._stability)


_RULES: Final[dict[str, type[ArrayOptimizer]]] = {"sgd": SGD, "momentum": Momentum, "adam": Adam}


@dataclass(frozen=True)
class DPOptimizer:
    """Optimizer with the noise of its gradients, for `DPModel`.

    Args:
        optimizer: moves the parameters: an `ArrayOptimizer`, or MindSpore's.
        mechanism: the noise.
        micro_batches: pieces of a batch whose gradients are clipped.
    """

    optimizer: Any
    mechanism: NoiseGaussianRandom
    micro_batches: int


class DPOptimizerClassFactory:
    """Factory of optimizers with noise.

    Args:
        micro_batches: pieces of a batch whose gradients are clipped, as for `DPModel`.

    Raises:
        TypeError: it is not an integer.
        ValueError: it is below 1.
    """

    def __init__(self, micro_batches: int = 2) -> None:
        self._micro_batches = whole("micro_batches", micro_batches)
        self._mechanism: NoiseGaussianRandom | None = None

    def set_mechanisms(self, policy: str, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - passed on
        """Choose the noise.

        Args:
            policy: 'Gaussian' or 'AdaGaussian'.
            *args: as for `NoiseMechanismsFactory.create`.
            **kwargs: as for `NoiseMechanismsFactory.create`.

        Raises:
            NameError: there is no such mechanism.
            TypeError: a number is not a number.
            ValueError: an argument is out of its bounds.
        """
        self._mechanism = NoiseMechanismsFactory.create(policy, *args, **kwargs)

    def create(self, policy: str) -> Callable[..., DPOptimizer]:
        """Return a maker of optimizers with the noise.

        Args:
            policy: 'sgd', 'momentum' or 'adam', in any case.

        Returns:
            The maker. It takes the arguments of `SGD`, `Momentum` or `Adam`; for parameters of MindSpore, those of
            MindSpore's optimizer of that name.

        Raises:
            NameError: there is no such optimizer.
            ValueError: the noise has not been chosen.
        """
        rule = _RULES.get(str(policy).lower())
        if rule is None:
            raise NameError(f"policy must be 'SGD', 'Momentum' or 'Adam', in any case, not {policy!r}.")
        if self._mechanism is None:
            raise ValueError("Which noise? Call set_mechanisms('Gaussian', ...) first.")
        mechanism, micro_batches = self._mechanism, self._micro_batches

        def make(params: Iterable[Any], *args: Any, **kwargs: Any) -> DPOptimizer:  # noqa: ANN401 - passed on
            parts = list(params)
            made = of_mindspore(rule.__name__) if parts and is_of_mindspore(parts[0]) else rule
            return DPOptimizer(made(parts, *args, **kwargs), mechanism, micro_batches)

        return make
