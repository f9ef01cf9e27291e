"""Descriptions of events in words, for pages."""

from collections import Counter
from typing import Final

from app.accounting.events import (
    Composed,
    Decay,
    DpEvent,
    GroupPrivacy,
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
            return f"{count(event.count)} times: {_described(event.event)}"
        case Composed():
            return _together(event)
        case RepeatAndSelect():
            trials = f"{format_exact(event.mean)} trials on average"
            return f"selection of the best of {trials}, each {_described(event.event)}"
        case GroupPrivacy():
            return f"{_described(event.event)}, for groups of {count(event.group_size)} records"
        case Decay():
            return f"{_described(event.event)}, noise decaying over {count(event.steps)} steps"
        case PoissonSampled() | TruncatedPoissonSampled():
            sampled = f"Poisson sampling with probability {format_exact(event.sampling_probability)}"
            if isinstance(event, TruncatedPoissonSampled):
                sampled += f", at most {count(event.truncated_batch_size)} records"
            return f"{_described(event.event)}, {sampled}"
        case SampledWithoutReplacement() | SampledWithReplacement():
            again = "without" if isinstance(event, SampledWithoutReplacement) else "with"
            batch = f"batches of {count(event.sample_size)} of {count(event.source_dataset_size)} records"
            return f"{_described(event.event)}, {batch} {again} replacement"
    noise, name = smallest_noise(event), type_name(event).replace("_", " ")
    return name if noise is None else f"{name}, noise multiplier {format_exact(noise)}"


def _together(event: Composed) -> str:
    times = Counter(map(_described, event.events))
    texts = [text if number == 1 else f"{count(number)} times: {text}" for text, number in times.items()]
    more = [f"{count(len(texts) - MOST_PARTS)} other events"] if len(texts) > MOST_PARTS else []
    return "together: " + "; ".join([*texts[:MOST_PARTS], *more])
