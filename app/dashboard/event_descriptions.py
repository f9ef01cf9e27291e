"""Descriptions of events in words, for pages."""

from collections import Counter
from typing import Final

from app.accounting.events import (
    Composed,
    Decay,
    DpEvent,
    GroupPrivacy,
    Laplace,
    PoissonSampled,
    RepeatAndSelect,
    SampledWithoutReplacement,
    SampledWithReplacement,
    SelfComposed,
    TruncatedPoissonSampled,
    smallest_noise,
    type_name,
)
from app.charts.model import count
from app.ledger.wording import format_exact

MOST_PARTS: Final = 5
"""Different events of a composition that are described; others are counted."""


def describe_event(event: DpEvent) -> str:
    """Describe an event in words, with all that multiplies its mechanism's cost."""
    text = _described(event)
    return text[:1].upper() + text[1:]


def _described(event: DpEvent) -> str:
    match event:
        case SelfComposed():
            text = f"{count(event.count)} times: {_described(event.event)}"
        case Composed():
            text = _together(event)
        case RepeatAndSelect():
            trials = f"{format_exact(event.mean)} trials on average"
            text = f"selection of the best of {trials}, each {_described(event.event)}"
        case GroupPrivacy():
            text = f"{_described(event.event)}, for groups of {count(event.group_size)} records"
        case Decay():
            text = f"{_described(event.event)}, noise decaying over {count(event.steps)} steps"
        case PoissonSampled() | TruncatedPoissonSampled():
            text = f"{_described(event.event)}, Poisson sampling with probability "
            text += format_exact(event.sampling_probability)
            if isinstance(event, TruncatedPoissonSampled):
                text += f", at most {count(event.truncated_batch_size)} records"
        case SampledWithoutReplacement() | SampledWithReplacement():
            again = "without" if isinstance(event, SampledWithoutReplacement) else "with"
            batch = f"batches of {count(event.sample_size)} of {count(event.source_dataset_size)} records"
            text = f"{_described(event.event)}, {batch} {again} replacement"
        case Laplace(epsilon=float(epsilon)):
            text = f"laplace, epsilon {format_exact(epsilon)}"
        case _:
            noise, text = smallest_noise(event), type_name(event).replace("_", " ")
            text += "" if noise is None else f", noise multiplier {format_exact(noise)}"
    return text


def _together(event: Composed) -> str:
    times = Counter(map(_described, event.events))
    texts = [text if number == 1 else f"{count(number)} times: {text}" for text, number in times.items()]
    more = [f"{count(len(texts) - MOST_PARTS)} other events"] if len(texts) > MOST_PARTS else []
    return "together: " + "; ".join([*texts[:MOST_PARTS], *more])
