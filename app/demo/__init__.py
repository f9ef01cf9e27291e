"""`epsilon-ledger demo`: a real DP-SGD training that stops at its budget, from an empty database on."""


class DemoError(Exception):
    """The demo cannot continue; the message gives the reason."""
