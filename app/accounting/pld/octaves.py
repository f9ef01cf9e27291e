"""Octaves of counts: those for which one lattice, one tilt and the same frequencies serve.

In an octave, the counts of each pair are between two powers of two. It depends on counts alone, and not on what was
asked for before: so does every epsilon.
"""

from dataclasses import dataclass
from math import exp, inf, log
from typing import Final, NamedTuple, Self

import numpy as np

from app.accounting.curves import Floats
from app.accounting.pld.composition import Tilted, saddle, saddle_of_delta
from app.accounting.pld.connect_the_dots import connect_the_dots
from app.accounting.pld.kept_frequencies import TooManyFrequenciesError
from app.accounting.pld.pairs import Pair
from app.accounting.pld.plans import COARSE, FINE, SETTLED, Composition, Fineness
from app.accounting.pld.shared_frequencies import Corner, SharedFrequencies

FINER: Final = Fineness(5e-6, 1 / 128, 0.025)
"""For few repetitions."""

FEW: Final = 1000
"""Up to this many repetitions, each counts."""

MAX_ROUNDS: Final = 5
SETTLED_LOG: Final = 0.1
"""Change of the logarithm of a corner's value from which on its frequencies would hardly change."""


class Octave(NamedTuple):
    """A range of counts of n pairs.

    Args:
        lowest: (n,) counts.
        highest: (n,) counts.
    """

    lowest: tuple[int, ...]
    highest: tuple[int, ...]

    @classmethod
    def of(cls, counts: tuple[int, ...]) -> Self:
        """Find the octave of (n,) positive counts."""
        lowest = tuple(1 << (count.bit_length() - 1) for count in counts)
        return cls(lowest, tuple(2 * each - 1 for each in lowest))

    @classmethod
    def alone(cls, counts: tuple[int, ...]) -> Self:
        """Build the range of these counts alone."""
        return cls(counts, counts)

    def ladder(self) -> tuple[Floats, Floats, Floats]:
        """Compute the lowest, middle and highest counts; (n,) each."""
        lowest, highest = (np.array(each, dtype=np.float64) for each in self)
        return lowest, np.floor(np.sqrt(lowest * highest)), highest


@dataclass(frozen=True, slots=True, eq=False)
class OctaveEpsilons:
    """The epsilons of one octave in one direction of neighbours.

    Args:
        frequencies: of the pairs.
        corners: the lowest and highest counts, and about their epsilons.
    """

    frequencies: SharedFrequencies
    corners: tuple[Corner, Corner]

    @classmethod
    def of(cls, pairs: tuple[Pair, ...], octave: Octave, goal: float) -> "OctaveEpsilons | None":
        """Compute what an octave needs for about the ln delta `goal`.

        None if a closed form or a lattice of its own serves a composition better.
        """
        known = Composition.of(dict(zip(pairs, octave.highest, strict=True)), exp(goal))
        if 2 * known.infinite > exp(goal) or known.rough.losses[-1] <= 0:
            return None
        try:
            return _Search(known, octave.ladder(), goal).found()
        except TooManyFrequenciesError:
            return None

    def epsilon(self, counts: Floats, goal: float, proven: float = 0.0) -> float:
        """Find about the smallest epsilon at which ln delta is at most `goal`, as `SharedFrequencies.epsilon`."""
        return self.frequencies.epsilon(counts, goal, self._near(counts), proven)

    def _near(self, counts: Floats) -> float:
        """Guess an epsilon: as a power of the mean of the tilted sum between those of the corners."""
        (lowest, first), (highest, last) = self.corners
        means = self.frequencies.moments[1]
        size, below, above = (float(each @ means) for each in (counts, lowest, highest))
        if not (0 < first < last and 0 < below < above and size > 0):
            return (first + last) / 2
        return float(first * (size / below) ** (log(last / first) / log(above / below)))


@dataclass
class _Search:
    """The search for the lattice, the tilt and the frequencies of an octave.

    Args:
        known: of the highest counts.
        ladder: the lowest, middle and highest counts.
        goal: ln delta.
    """

    known: Composition
    ladder: tuple[Floats, Floats, Floats]
    goal: float

    def found(self) -> OctaveEpsilons | None:
        """Compute frequencies until the epsilons that they were chosen for are those that they give."""
        rough, goal = self.known.rough, self.goal
        guesses = [saddle_of_delta(rough, counts, goal) for counts in self.ladder]
        tilt, epsilons = guesses[1][0], [max(epsilon, 0.0) for _, epsilon in guesses]
        few = self.ladder[2].sum() <= FEW
        found: SharedFrequencies | None = None
        for turn in range(MAX_ROUNDS):
            # For few repetitions the guesses are poor.
            fineness = (FINER if turn else COARSE) if few else FINE
            found = self._frequencies(tilt, epsilons, fineness)
            values = zip(self.ladder, epsilons, strict=True)
            better = [found.root(counts, goal, epsilon) for counts, epsilon in values]
            if max(better) == inf:
                return None
            changes = [abs(one - other) for one, other in zip(better, epsilons, strict=True)]
            epsilons = better
            if fineness != COARSE and changes[1] <= SETTLED * better[1] and max(changes) * found.tilt <= SETTLED_LOG:
                break
            tilt = saddle(rough, self.ladder[1], epsilons[1], tilt.tilt)
        assert found is not None, "there is at least one round"
        corners = Corner(self.ladder[0], epsilons[0]), Corner(self.ladder[2], epsilons[2])
        return OctaveEpsilons(found, corners)

    def _frequencies(self, tilt: Tilted, epsilons: list[float], fineness: Fineness) -> SharedFrequencies:
        """Compute frequencies on a lattice that suits the middle, or a coarser one."""
        known = self.known
        middle = Composition(known.pairs, self.ladder[1], known.spreads, known.rough)
        lattice = middle.lattice(tilt, epsilons[1], fineness)
        corners = list(map(Corner, self.ladder, epsilons))
        while True:
            found = SharedFrequencies.of(connect_the_dots(known.pairs, lattice), tilt.tilt, corners, self.goal)
            if found is not None:
                return found
            lattice = lattice.coarser()
