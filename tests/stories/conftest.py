"""The stories' browser is that of the pages' tests."""

from tests.dashboard.conftest import browser, enter, page

__all__ = ["browser", "enter", "page"]
