"""Errors of the demo."""


class DemoError(Exception):
    """The demo cannot continue; the message gives the reason."""
