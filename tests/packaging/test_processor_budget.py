"""Budgets of processor time: `make check` fails for a folder that takes more than its own, or has none."""

from tests.processor_budget import over_budget


def test_folder_is_over_its_budget_from_a_fifth_more_on() -> None:
    assert over_budget({"api": 120.0}, {"api": 100.0}) == []
    assert over_budget({"api": 121.0}, {"api": 100.0}) == ["api: 121 s of processor, budget 100 s"]


def test_folder_without_budget_or_without_record_is_named() -> None:
    found = over_budget({"api": 1.0}, {"ledger": 1.0})
    assert found == ["api: no budget in README.md", "ledger: a budget, and no recorded time"]
