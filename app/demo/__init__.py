"""A real DP-SGD training that stops at its budget."""


class DemoError(Exception):
    """The demo cannot continue; the message gives the reason."""
