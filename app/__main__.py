"""The command line's way in: `epsilon-ledger`, or `python -m app`."""

from app.loading import uncollected


def main() -> None:
    """Load what the commands need, and run the one that was asked for."""
    with uncollected():
        from app.cli import main as run  # noqa: PLC0415 - loaded here, where nothing is looked through meanwhile
    run()


if __name__ == "__main__":
    main()
