"""The pages about accounting, compared with the code: events, relations, tables, answers."""

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from math import nan
from types import ModuleType

import numpy as np
import pytest

from app.accounting.curves import EXHAUSTED, GRID_VERSION, HIGHEST, PURE, UNIT, orders
from app.accounting.errors import UnsupportedEventError
from app.accounting.events import (
    DpEvent,
    GroupPrivacy,
    NeighboringRelation,
    NoOp,
    PoissonSampled,
    SampledWithoutReplacement,
    event_from_dict,
    event_to_dict,
)
from app.accounting.events.base import TYPE_BY_NAME
from app.accounting.group_privacy import sampled_mixture
from app.accounting.poisson_rdp import is_amplified
from app.accounting.rdp import curve_over
from benchmarks import tightness
from benchmarks.tightness_plans import Plan, plans
from tests.accounting import test_amplification, test_mechanisms, test_sampled_gaussian, test_without_replacement
from tests.conftest import Ledger
from tests.docs.markdown import ROOT, Fence, fences, section
from tests.docs.test_readme import difference

PAGES = (tightness.DOCUMENT, ROOT / "docs/reference/mechanisms.md", ROOT / "docs/how-to/plan-a-training.md")
PAGE = "\n".join(page.read_text() for page in PAGES)
FENCES = fences(PAGE)
WRAPPERS = {"composed", "self_composed", "repeat_and_select", "group_privacy", "decay"}
SOME_ORDERS = np.array([1.5, 2.0, 8.0])

# Where privacy loss distributions take no more than a second.
QUICK = (
    "one Gaussian, z 5",
    "tree aggregation, z 20, trees of 100 and 50 steps, 5 epochs",
    "Laplace, z 1",
    "exponential, epsilon 0.1, 100 times",
    "Gaussian, z 20, 50 times, with (0.1, 1e-7)-DP, 10 times",
    "best of K Gaussian runs, z 4, K geometric with mean 10",
)
PLANS = plans()


def rows(text: str) -> list[list[str]]:
    """The cells of the tables, header and rule left out."""
    tables = re.findall(r"(?m)(?:^\|.*\n)+", text)
    lines = [line for table in tables for line in table.splitlines()[2:]]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def objects(text: str) -> Iterator[object]:
    """The JSON values that follow each other in a text."""
    decoder, place = json.JSONDecoder(), 0
    while place < len(text.rstrip()):
        value, place = decoder.raw_decode(text, place)
        yield value
        place = len(text) - len(text[place:].lstrip())


def subsections(text: str) -> dict[str, str]:
    """What stands under the headings of the third level, by each event type that one of them names."""
    parts = re.split(r"(?m)^### (.*)$", re.sub(r"(?m)^## ", "### ", text))
    return {
        name: body
        for title, body in zip(parts[1::2], parts[2::2], strict=True)
        for name in re.findall("`(.*?)`", title)
    }


SECTIONS = subsections(PAGE)
EXAMPLES = [(name, wire) for name, text in SECTIONS.items() for fence in fences(text) for wire in objects(fence.text)]


def example(name: str) -> DpEvent:
    return next(event_from_dict(wire) for where, wire in EXAMPLES if where == name)


def test_every_event_type_has_its_section_with_source_and_examples_that_have_a_price() -> None:
    assert set(SECTIONS) == set(TYPE_BY_NAME)
    for name, text in SECTIONS.items():
        assert f'"type": "{name}"' in text
        assert name in WRAPPERS - {"repeat_and_select"} or re.search(r"(19|20)\d\d", text), f"no source of {name}"
    for name, wire in EXAMPLES:
        event = event_from_dict(wire)
        assert event_to_dict(event) == wire, name
        assert any(is_supported(event, relation) for relation in NeighboringRelation), name


def is_supported(event: DpEvent, relation: NeighboringRelation) -> bool:
    try:
        curve_over(event, SOME_ORDERS, relation)
    except UnsupportedEventError:
        return False
    return True


def is_mirrored(sampled: PoissonSampled, relation: NeighboringRelation) -> bool:
    """Say whether a replaced record of a sample is charged as a mixture, or as nothing."""
    is_replaced = relation is NeighboringRelation.REPLACE_ONE
    return sampled.event == NoOp() or (is_replaced and sampled_mixture(sampled) is not None)


@pytest.mark.parametrize("row", rows(section(PAGE, "Neighboring relations")), ids=lambda row: row[0])
def test_event_is_supported_where_the_table_says_so(row: list[str]) -> None:
    name, *cells = row
    event, words = example(name.strip("`")), {True: "yes", False: "no"}
    under = [is_supported(event, relation) for relation in NeighboringRelation]
    added, replaced, special = NeighboringRelation
    sampled, fixed = PoissonSampled(0.1, event), SampledWithoutReplacement(100, 10, event)
    on_sample = [
        "convex"
        if is_supported(sampled, relation) and not is_amplified(event, relation) and not is_mirrored(sampled, relation)
        else words[each]
        for relation in NeighboringRelation
        for each in [is_supported(sampled, relation)]
    ]
    in_group = [is_supported(GroupPrivacy(2, event), relation) for relation in NeighboringRelation]
    assert event == NoOp() or not (is_supported(fixed, added) or is_supported(fixed, special))
    assert in_group in (under, [False] * 3)
    both = [words[is_supported(fixed, replaced)], words[any(in_group)]]
    assert cells == [*(words[each] for each in under), *on_sample, *both]


def test_table_of_relations_has_all_events_but_wrappers() -> None:
    assert {row[0].strip("`") for row in rows(section(PAGE, "Neighboring relations"))} == set(TYPE_BY_NAME) - WRAPPERS


def test_numbers_of_curves_are_those_of_the_code() -> None:
    text = section(PAGE, "Curves")
    assert f"{orders(GRID_VERSION).size - 1:,} orders between 1 and {HIGHEST:,.0f}" in text
    assert "2^60" in text
    assert orders(GRID_VERSION)[-1] == PURE == 2**60
    assert f"2^-44 nats ({2.0**-44:.1e})" in text
    assert UNIT == 2.0**-44
    assert f"2^63 - 1 units ({EXHAUSTED * UNIT:,.0f} nats)" in text


def test_bounds_on_errors_are_those_of_the_tests() -> None:
    held: list[ModuleType] = []
    for *_, bound, file in rows(section(PAGE, "How exact")):
        if file != "the same":
            held.append({f"`{module.__name__.rsplit('.')[-1]}.py`": module for module in TESTS}[file])
        assert float(bound) == held[-1].TOLERANCE
    assert set(held) == set(TESTS)


TESTS = (test_amplification, test_without_replacement, test_mechanisms, test_sampled_gaussian)


def kept() -> dict[str, list[str]]:
    _, table, _ = re.split("|".join(map(re.escape, (tightness.BEGIN, tightness.END))), PAGE)
    return {name: cells for name, *cells in rows(table)}


def test_table_of_tightness_has_the_plans_of_the_script() -> None:
    assert list(kept()) == [plan.name for plan in PLANS]
    assert set(QUICK) <= set(kept())
    assert f"| {' | '.join(tightness.HEADER)} |" in PAGE


@pytest.mark.parametrize(
    "plan",
    [pytest.param(plan, marks=pytest.mark.soak if plan.name.startswith("decay") else ()) for plan in PLANS],
    ids=lambda plan: plan.name,
)
def test_row_of_tightness_is_computed_by_the_script(plan: Plan) -> None:
    if plan.name in QUICK:
        assert tightness.read(plan).cells() == kept()[plan.name]
        return
    _, pld, ours, _, theirs, classic = tightness.read(replace(plan, low=lambda: nan, high=lambda: nan)).cells()
    _, kept_pld, kept_ours, ratio, kept_theirs, kept_classic = kept()[plan.name]
    assert (pld, ours, theirs, classic) == (kept_pld, kept_ours, kept_theirs, kept_classic)
    assert float(ratio.removeprefix("at most ")) >= 1


def test_every_call_is_answered_as_shown(ledger: Ledger) -> None:
    # The paths, the bodies as a shell makes them, and the answers in the comments below.
    blocks: list[Fence] = [fence for fence in FENCES if fence.language == "bash"]
    script = "\n".join(block.text for block in blocks)
    shell = 'LEDGER=\nask() { printf \'%s\\t%s\\n\' "$1" "$3"; }\n'
    said = subprocess.run(["bash", "-euc", shell + script], capture_output=True, text=True, check=True).stdout
    answers = [json.loads(line[2:], parse_float=Decimal) for line in script.splitlines() if line.startswith("# ")]
    asked = [line.split("\t") for line in said.splitlines()]
    shown = [(path, json.loads(body), answer) for (path, body), answer in zip(asked, answers, strict=True)]
    assert len({path for path, _, _ in shown}) == 7
    for path, body, answer in shown:
        reply = ledger.post(path, body, "viewer")
        assert reply.status_code == 200, reply.text
        assert without_extras(answer, reply.json()) is None, reply.text


def without_extras(shown: object, real: object) -> str | None:
    """As `difference`, where lists may be shown without their last items."""
    if isinstance(shown, dict) and isinstance(real, dict):
        real = real | {
            name: real[name][: len(value)] for name, value in shown.items() if isinstance(value, list) and value
        }
    return difference(shown, real)


def test_halved_sensitivity_of_a_softmax_would_halve_its_epsilon(ledger: Ledger) -> None:
    body = {"bound": 1e-5, "probability": 0.9, "l1_sensitivity": 1}
    epsilon = ledger.post("/v1/accounting/laplace", body, "viewer").json()["epsilon"]
    assert f"it would be {epsilon:,.0f}" in section(PAGE, "Laplace noise for local privacy")
