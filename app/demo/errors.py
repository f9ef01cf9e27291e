"""What stops the demo."""


class DemoError(Exception):
    """The demo cannot go on; the message says why, to a person."""
