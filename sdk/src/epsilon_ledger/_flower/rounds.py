"""Rounds from the draw of their clients to their charge, of which one is open at a time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from epsilon_ledger import Run, Trial
from epsilon_ledger._federated.errors import UnsupportedRoundError
from epsilon_ledger._flower.settings import Settings
from epsilon_ledger.mechanisms import AdaptiveClipping, GaussianNoise

Model = TypeVar("Model")


@dataclass(frozen=True)
class Round(Generic[Model]):
    """A round whose clients were drawn, and which was not charged yet.

    Args:
        number: Flower's.
        model: that the clients were sent.
        clients: from which they were drawn.
        sampled: number of those that were drawn.
    """

    number: int
    model: Model
    clients: int
    sampled: int


class Rounds(Generic[Model]):
    """The rounds of a training.

    Args:
        run: to charge.
        settings: of the rounds.
    """

    def __init__(self, run: Run | Trial, settings: Settings) -> None:
        self._run, self._settings = run, settings
        self._open: Round[Model] | None = None

    def draw(self, number: int, model: Model, proposed: Iterable[Any]) -> list[Any]:
        """Draw the clients of a round.

        A round that was drawn before and not aggregated is charged first: otherwise the replies could decide which
        rounds are charged.

        Args:
            number: of the round.
            model: that the clients are sent.
            proposed: messages or instructions by the wrapped strategy.

        Returns:
            Those of the sample.

        Raises:
            LedgerError: the earlier round is not admitted; this one was not drawn.
        """
        if self._open is not None:
            self.charge(self._settings.mechanism())
        drawn, clients = self._settings.draw(proposed)
        self._open = Round(number, model, clients, len(drawn))
        return drawn

    def require_open(self, number: int) -> Round[Model]:
        """Return the open round, if it has this number.

        Raises:
            UnsupportedRoundError: another one is open, or none.
        """
        if self._open is None or self._open.number != number:
            raise UnsupportedRoundError(f"Round {number} was not configured here, or was aggregated before.")
        return self._open

    def charge(self, mechanism: GaussianNoise | AdaptiveClipping) -> None:
        """Charge the open round; whatever the ledger answers, it is no longer open.

        Raises:
            LedgerError: release nothing of the round.
        """
        opened, self._open = self._open, None
        assert opened is not None
        self._run.authorize(event=self._settings.event(mechanism, clients=opened.clients, sampled=opened.sampled))


def require_different(nodes: Sequence[object]) -> None:
    """Require that no client takes part twice.

    Raises:
        UnsupportedRoundError: one does, and its share would be larger than a clipping norm.
    """
    if len(set(nodes)) != len(nodes):
        raise UnsupportedRoundError("A client takes part in this round twice, so that its share has no known bound.")
