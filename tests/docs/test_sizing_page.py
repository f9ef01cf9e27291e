"""The page about sizing: its tables, its model, and what it says about both."""

import re
from dataclasses import replace
from functools import cache
from itertools import pairwise
from math import ceil

import pytest

from app.service.charging.ledger_state import LedgerState
from benchmarks.sizing import costs, report
from benchmarks.sizing.costs import (
    BARE,
    CONNECTIONS,
    GRANT,
    ONE_RUN,
    RESERVED_SHARE,
    SECOND,
    Cost,
    Way,
    reserved_ratio,
    single_steps,
    ways,
)
from benchmarks.sizing.model import (
    ACCOUNTS,
    CACHED_ACCOUNTS,
    CACHED_ORGANISATIONS,
    CORES,
    LOG_BYTES,
    ROW_LOADS,
    Waiting,
    mean_group,
    need,
    predictions,
    shared_population,
    waiting_times,
)
from benchmarks.sizing.simulation import Load, simulate
from tests.docs.markdown import ROOT, section

PAGE = report.DOCUMENT.read_text()
SCALING = (ROOT / "docs/operations/scaling.md").read_text()
WAYS = {way.name: way for way in ways()}
FITTED_ERROR, ERROR = 0.01, 0.10
"""Errors of figures that the model was fitted to, and of those that it predicts; the page states the latter."""
SOAK = pytest.mark.soak

SOURCES = [
    ("Steps a second over HTTP", "(1,594 /s, 40 ms, 53 ms)"),
    ("Steps a second over HTTP", "(2,065 /s, 31 ms, 43 ms)"),
    ("Steps a second over HTTP", "0.90 (2,449 /s, 24 ms, 50 ms at 99 %) | 1.0 | 0.59 ("),
    ("Steps a second over HTTP", "| reserved steps, a run for each | 0.40 | | 0.29 |"),
    ("Steps a second over HTTP", "| one connection, median | 0.47 ms | 1.20 ms | 0.8 ms | 3.5 ms |"),
    ("Steps a second over HTTP", "53,400 /s | 150,000 /s | 33,500 /s"),
    ("Inside a group", "| 64 steps, one run | 4 | 75 | 21 | 13 | **114** |"),
    ("Inside a group", "| 64 steps, 64 runs | 8 | 88 | 45 | 32 | 173 |"),
    ("Inside a group", "Parsing its 128 bytes takes 7."),
    ("Latency of one step", "| one bare SQLite commit of 1 KB | 0.42 ms |"),
    ("Overhead of the client", "| a call per step (asked: 2,000) | 3,378 | 3,522 |"),
    ("Overhead of the client", "| grants of 50 | 7 | 294 |"),
    ("Sessions shared by transactions", "| 1 | 0.62 | 0.64 |"),
    ("Sessions shared by transactions", "| 32, each its own run | 0.86 | 0.88 |"),
    ("A decision", "| 64 connections, a run for each, SQLite | 7,273 |"),
    ("A decision", "| the same, PostgreSQL 15 | | 4,624 |"),
    ("A decision", "| the same, PostgreSQL 15 | | 6,014 |"),
    ("A decision", "| the same, PostgreSQL 15 | | 589 |"),
    ("Two replicas", "| charged to the path, one population | 525 | 0.69 |"),
    ("Two replicas", "| reserved, one population | 685 | 1.10 |"),
]


@cache
def _waits() -> list[Waiting]:
    return list(waiting_times())


@pytest.mark.parametrize(("title", "row"), SOURCES)
def test_measured_figure_of_the_model_is_on_the_page_of_performance(title: str, row: str) -> None:
    assert row in section((ROOT / "docs/operations/performance.md").read_text(), title)
    numbers = {float(text.replace(",", "")) for text in re.findall(r"\d[\d,]*\.?\d*", row)}
    scaled = numbers | {1e3 * each for each in numbers}  # the model has microseconds
    assert scaled & {value for value in vars(costs).values() if isinstance(value, int | float)}


@pytest.mark.parametrize(
    "name",
    ["needs", "saturation", "costs", pytest.param("waiting", marks=SOAK), pytest.param("validation", marks=SOAK)],
)
def test_table_is_that_which_the_model_computes(name: str) -> None:
    begin, end = report.marks(name)
    assert f"{begin}\n{getattr(report, f'{name}_table')()}\n{end}" in PAGE


@SOAK
def test_model_returns_fitted_figures_and_predicts_the_others() -> None:
    found = list(predictions())
    assert [each.fitted for each in found] == [True] * 3 + [False] * 5
    for each in found:
        assert abs(each.error) < (FITTED_ERROR if each.fitted else ERROR), each
    assert "Figures that were not used are predicted to 10 %." in " ".join(PAGE.split())


@SOAK
def test_simulation_has_the_latency_of_the_page_the_loss_of_two_replicas_and_the_rate_of_reserved_steps() -> None:
    late = simulate(single_steps(), Load(connections=CONNECTIONS)).late
    assert f"at 53 ms, and the model says {late:.0f}" in " ".join(PAGE.split())
    loads = [Load(connections=32, workers=2, shared_row=shared) for shared in (False, True)]
    apart, shared = (simulate(single_steps(), load).rate for load in loads)
    assert shared < 0.8 * apart  # a model without the row would miss it
    rate = simulate(single_steps().times(reserved_ratio()), Load(connections=CONNECTIONS)).rate
    assert rate == pytest.approx(RESERVED_SHARE * BARE, rel=FITTED_ERROR)


@pytest.mark.parametrize("rate", [500, pytest.param(1_000, marks=SOAK), pytest.param(1_400, marks=SOAK), 1_800])
def test_simulation_has_the_groups_of_the_formula(rate: float) -> None:
    assert shared_population(1, rate).group == pytest.approx(mean_group(rate), rel=0.1)
    assert "the same groups to 10 %" in PAGE


def test_population_saturates_at_the_rate_of_the_table_for_any_workers() -> None:
    row = SECOND / (WAYS["single steps, alone"].row or 0)
    for workers in (2, 8):
        assert shared_population(workers, 2 * row).rate == pytest.approx(row, rel=0.05)
    assert f"{report.number(row)} single steps a second at most" in " ".join(SCALING.split())


def test_more_load_never_needs_less() -> None:
    for way in WAYS.values():
        for fewer, more in pairwise(need(way, count) for count in (1, 5, 10, 50, 100, 1_000, 10_000)):
            for name in ("steps", "pooled", "workers", "cores", "servers", "log", "kept_a_day", "memory"):
                assert getattr(fewer, name) <= getattr(more, name), (way.name, name)


def test_pooler_costs_workers_and_processors() -> None:
    way = WAYS["single steps, alone"]
    found = need(way, 100)
    direct = need(replace(way, pooled=1), 100)
    assert found.pooled
    assert found.workers == pytest.approx(direct.workers / way.pooled, abs=1)
    assert found.cores == pytest.approx(direct.cores / way.pooled, abs=1)
    assert not need(way, 10).pooled


@SOAK  # the tables notice a changed model
def test_more_load_waits_longer_in_larger_groups() -> None:
    for workers in (1, 4):
        for less, more in pairwise(shared_population(workers, rate) for rate in ROW_LOADS[:-1]):
            assert less.late < more.late
            assert less.group < more.group
    for shorter, longer in pairwise(_waits()):
        assert shorter.rate < longer.rate
        assert shorter.many.late < longer.many.late
        assert shorter.one.late < longer.one.late


@SOAK
def test_needed_workers_and_cores_are_enough() -> None:
    """At most 70 % busy, simulated with the workers of the table."""
    wanted = need(WAYS["single steps, alone"], 10)
    load = Load(rate=wanted.steps, workers=wanted.workers, organisations=10, cores=wanted.cores, requests=10_000)
    found = simulate(single_steps(), load)
    assert found.rate == pytest.approx(wanted.steps, rel=0.05)
    assert found.late < 20


def test_lone_request_waits_for_each_part_once() -> None:
    cost = Cost(client=10, http=20, work=(100, 3, 5), store=(200, 7, 11), sync=40)
    found = simulate(cost, Load(connections=1, requests=10))
    assert found.median * 1e3 == pytest.approx(20 + 103 + 207 + 40)
    pair = simulate(cost, Load(connections=2, requests=10))
    assert pair.median * 1e3 == pytest.approx(2 * 20 + 106 + 5 + 214 + 11 + 40)
    one_run = simulate(cost, Load(connections=2, own_runs=False, requests=10))
    assert one_run.median * 1e3 == pytest.approx(2 * 20 + 106 + 214 + 40)


def test_cache_has_the_size_that_the_model_assumes() -> None:
    assert LedgerState().accounts._size == CACHED_ACCOUNTS
    assert ACCOUNTS * CACHED_ORGANISATIONS <= CACHED_ACCOUNTS
    assert f"{CACHED_ACCOUNTS:,} in each worker, which are {CACHED_ORGANISATIONS} of these" in PAGE


def test_figures_in_the_text_are_those_of_the_model() -> None:
    alone, grants = WAYS["single steps, alone"], WAYS["grants of 50"]
    assert round(alone.worker / grants.worker) == round(alone.store / grants.store) == 12
    assert (alone.row or 0) / (grants.row or 1) == pytest.approx(1.6, abs=0.05)
    assert grants.request == GRANT
    lone, busy = _waits()[0].many.median, _waits()[3].many.late
    assert 2 < busy / lone <= 3.1
    assert pytest.approx(2.065) == ONE_RUN / 1e3


def servers_of(way: Way) -> list[str]:
    return [str(ceil(1e6 * way.log / LOG_BYTES)), str(ceil(1e6 * way.store / SECOND / CORES))]


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ("single steps, each its own run, alone in its group", "single steps, alone"),
        ("the same in groups of 64", "single steps, groups of 64"),
        ("the same, reserved", "single steps, reserved"),
        ("batches of 1,000 steps of ten events", "batches of 1,000, ten events"),
        ("`count: 1000`", "count: 1,000"),
    ],
)
def test_million_steps_take_the_servers_of_the_model(row: str, name: str) -> None:
    text = section(SCALING, "A million steps a second")
    found = re.search(rf"(?m)^\| {re.escape(row)} \| [^|]* \| (\d+) \| (\d+) \|", text)
    assert found is not None
    assert list(found.groups()) == servers_of(WAYS[name])


def test_few_runs_of_that_table_share_their_account() -> None:
    cost = single_steps()
    way = replace(WAYS["single steps, groups of 64"], store=cost.store_of(CONNECTIONS, 1) / CONNECTIONS, log=630)
    logged, computed = servers_of(way)
    assert f"| single steps, many in each group, few runs | 0.6 GB | {logged} | {computed} |" in SCALING


@SOAK  # the tables notice a changed model, and drawing takes longer than all of them
def test_plot_is_what_the_model_draws_byte_for_byte() -> None:
    assert report.plot() == report.PLOT.read_text()
