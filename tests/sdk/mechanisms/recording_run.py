"""A run in memory that remembers what it was asked, and refuses when it is told to."""

from dataclasses import dataclass, field

from epsilon_ledger import Event


class RefusedError(Exception):
    pass


@dataclass
class Asked:
    """Admits `capacity` releases."""

    capacity: int = 10**9
    events: list[Event] = field(default_factory=list)

    def authorize(self, count: int = 1, *, event: Event | None = None) -> str:
        assert count == 1
        assert event is not None
        if len(self.events) >= self.capacity:
            raise RefusedError
        self.events.append(event)
        return "admitted"
