"""The stories' browser is that of the pages' tests."""

from tests.dashboard.conftest import browser, context, page

__all__ = ["browser", "context", "page"]
