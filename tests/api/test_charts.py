"""Histories as pictures: well-formed, the same for the same numbers, drawn only for who has them not yet."""

import struct
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event
from xml.etree import ElementTree as ET

import pytest

from app.api.routers import charts
from app.charts.model import Chart
from app.charts.render import Frame, draw
from tests.conftest import Ledger

SVG = "{http://www.w3.org/2000/svg}"
BOTH = ("run", "population")


@pytest.fixture
def paths(ledger: Ledger) -> dict[str, str]:
    """Where the histories of a run and of its population are."""
    population = str(ledger.population(limit={"epsilon": 8.0, "delta": 1e-5})["id"])
    ledger.budget()
    run = ledger.run(name="a $ or <two>")
    for count in (10, 20):
        assert ledger.post(f"/v1/runs/{run}/steps", {"count": count}, "trainer").is_success
    return {"run": f"/v1/runs/{run}/history", "population": f"/v1/accounts/{population}/history"}


@pytest.mark.parametrize("of", BOTH)
def test_an_svg_is_well_formed_says_what_it_shows_and_runs_nothing(
    ledger: Ledger, paths: dict[str, str], of: str
) -> None:
    reply = ledger.get(f"{paths[of]}.svg")
    assert (reply.status_code, reply.headers["content-type"]) == (200, "image/svg+xml")
    root = ET.fromstring(reply.content)  # noqa: S314 - it is our own
    assert root.tag == f"{SVG}svg"
    answer = " ".join(root.findtext(f"{SVG}{name}") or "" for name in ("title", "desc"))
    assert {"run": "mimic/icu-team/a $ or <two>: epsilon over steps", "population": "mimic: epsilon over time"}[
        of
    ] in answer
    assert "Limit" in answer
    assert not list(root.iter(f"{SVG}script"))
    assert b"<!DOCTYPE" not in reply.content
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src" not in policy


@pytest.mark.parametrize("of", BOTH)
def test_a_png_has_the_size_that_was_asked_for(ledger: Ledger, paths: dict[str, str], of: str) -> None:
    reply = ledger.get(f"{paths[of]}.png?width=500&height=300&theme=dark")
    assert reply.headers["content-type"] == "image/png"
    assert reply.content[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", reply.content[16:24]) == (500, 300)


@pytest.mark.parametrize("of", BOTH)
@pytest.mark.parametrize("kind", ["svg", "png"])
def test_the_same_numbers_give_the_same_bytes_and_a_theme_gives_others(
    ledger: Ledger, paths: dict[str, str], of: str, kind: str
) -> None:
    first, again, dark = (ledger.get(f"{paths[of]}.{kind}{query}") for query in ("", "", "?theme=dark"))
    assert first.content == again.content
    assert first.content != dark.content
    assert first.headers["etag"] == again.headers["etag"] != dark.headers["etag"]


def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Chart]:
    """What is drawn from now on."""
    seen: list[Chart] = []

    def watched(chart: Chart, frame: Frame) -> bytes:
        seen.append(chart)
        return draw(chart, frame)

    monkeypatch.setattr(charts, "draw", watched)
    return seen


@pytest.mark.parametrize("of", BOTH)
def test_the_numbers_are_those_of_the_history(
    ledger: Ledger, paths: dict[str, str], of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    charts = drawn(monkeypatch)
    ledger.get(f"{paths[of]}.svg")
    answer = [point["epsilon"] for point in ledger.get(paths[of]).json()["points"]]
    [spent] = [series for series in charts[0].series if series.name == "Spent"]
    assert [y for _, y in spent.points][-len(answer) :] == answer


@pytest.mark.parametrize("of", BOTH)
def test_who_has_it_is_told_so_before_anything_is_drawn(
    ledger: Ledger, paths: dict[str, str], of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tag = ledger.get(f"{paths[of]}.svg").headers["etag"]
    charts = drawn(monkeypatch)
    assert ledger.get(f"{paths[of]}.svg", If_None_Match=tag).status_code == 304
    assert charts == []


@pytest.mark.parametrize("query", ["width=199", "width=2001", "height=119", "height=1201", "theme=pink", "size=3"])
def test_no_picture_is_larger_than_is_good(ledger: Ledger, paths: dict[str, str], query: str) -> None:
    for of in BOTH:
        assert ledger.get(f"{paths[of]}.png?{query}").status_code == 422


def test_who_waits_for_a_picture_takes_no_thread_from_anybody_else(
    ledger: Ledger, paths: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, drawn_now = 50, Event()

    def slow(*_: object) -> bytes:
        assert drawn_now.wait(60)
        return b"a picture"

    monkeypatch.setattr(charts, "draw", slow)
    with ThreadPoolExecutor(asked + 1) as pool:
        waiting = [pool.submit(ledger.get, f"{paths['run']}.png?width={200 + one}") for one in range(asked)]
        wait(waiting, timeout=1)
        reply = pool.submit(ledger.get, "/v1/populations")
        done, _ = wait([reply], timeout=20)
        drawn_now.set()
        assert [each.result().status_code for each in waiting] == [200] * asked
    assert done == {reply}
