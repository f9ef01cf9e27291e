"""The command line's way in: `epsilon-ledger`, or `python -m app`."""

from app.gc_control import gc_frozen


def main() -> None:
    """Load what the commands need, and run the one that was asked for."""
    with gc_frozen():
        from app.cli import main as run  # noqa: PLC0415 - loaded here, where nothing is looked through meanwhile
    run()


if __name__ == "__main__":
    main()
