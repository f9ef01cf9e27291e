"""Charts as data: what a script, a table and a sentence tell of the same points."""

import json
from datetime import UTC, datetime
from math import inf

import pytest

from app.charts.model import (
    MOST_MARKS,
    MOST_ROWS,
    Axis,
    AxisKind,
    Chart,
    Mark,
    Series,
    SeriesKind,
    SeriesRole,
    format_value,
    milliseconds,
)

STEPS, EPSILON = Axis("Step", start=0), Axis("Epsilon", start=0)


def chart(*series: Series, x: Axis = STEPS, marks: tuple[Mark, ...] = ()) -> Chart:
    return Chart("Epsilon over steps", x, EPSILON, series, marks)


def test_json_has_points_roles_and_axes_and_cannot_end_its_script_element() -> None:
    spent = Series("Spent", ((0.0, 0.0), (10.0, 0.5)), role=SeriesRole.SPENT)
    answer = json.loads(chart(spent, marks=(Mark(5.0, "raised"),)).json())
    assert answer["x"] == {"label": "Step", "kind": "number", "from": 0}
    assert answer["series"] == [{"name": "Spent", "kind": "line", "role": "spent", "points": [[0.0, 0.0], [10.0, 0.5]]}]
    assert answer["marks"] == [{"x": 5.0, "label": "raised"}]
    lost = chart(Series("Spent", ((0.0, 1.0), (1.0, inf))))
    assert json.loads(lost.json())["series"][0]["points"] == [[0.0, 1.0], [1.0, None]]
    assert lost.table().rows[-1] == ("1", "∞")
    text = chart(Series("</script><script>alert(1)</script>&", ((0.0, 1.0),))).json()
    assert not set("<>&") & set(text)
    assert json.loads(text)["series"][0]["name"] == "</script><script>alert(1)</script>&"


def test_table_has_a_column_for_each_series_and_is_thinned_out_when_long() -> None:
    limit = Series("Limit", ((0.0, 2.0), (10.0, 2.0)), SeriesKind.STEP, SeriesRole.LIMIT)
    table = chart(Series("Spent", ((5.0, 0.5), (10.0, 1.0))), limit).table()
    assert table.head == ("Step", "Spent", "Limit")
    assert table.rows == (("0", "", "2.000"), ("5", "0.5000", ""), ("10", "1.000", "2.000"))
    assert table.left_out == 0
    table = chart(Series("Spent", tuple((float(x), x / 1000) for x in range(1000)))).table()
    assert len(table.rows) == MOST_ROWS
    assert table.left_out == 1000 - MOST_ROWS
    assert (table.rows[0][0], table.rows[-1][0]) == ("0", "999")


def test_summary_names_the_end_of_each_line_or_that_there_is_nothing() -> None:
    empty = chart(Series("Limit", ((0.0, 2.0), (1.0, 2.0)), role=SeriesRole.LIMIT))
    assert empty.is_empty
    assert empty.summary == "Epsilon over steps: nothing yet."
    answer = chart(Series("Spent", ((0.0, 0.0), (1.0, 0.5))), Series("Gone", ((0.0, None),))).summary
    assert answer == "Epsilon over steps. At the end: Spent 0.5000."


def test_last_of_many_marks_are_drawn() -> None:
    marks = tuple(Mark(float(x), str(x)) for x in range(100))
    answer = json.loads(chart(Series("Spent", ((0.0, 1.0),)), marks=marks).json())["marks"]
    assert len(answer) == MOST_MARKS
    assert answer[-1]["label"] == "99"


@pytest.mark.parametrize(
    ("y", "answer"),
    [
        *((0.0, "0"), (0.50001, "0.5001"), (1.64771, "1.648"), (95.8205, "95.83"), (123_456.7, "123\u202f500")),
        *((1.00001e-12, "0.000000000001001"), (1.00001e-17, "1.001e-17"), (5e-324, "5e-324"), (None, "")),
    ],
)
def test_value_is_rounded_up(y: float | None, answer: str) -> None:
    assert format_value(y) == answer


def test_moment_is_written_in_utc() -> None:
    at = milliseconds(datetime(2026, 11, 21, 9, 30, tzinfo=UTC))
    single = chart(Series("Spent", ((at, 1.0),)), x=Axis("Time (UTC)", AxisKind.TIME))
    assert single.table().rows == (("2026-11-21 09:30", "1.000"),)
