"""Entry point of the command line: `epsilon-ledger`, or `python -m app`."""

from app import gc_frozen


def main() -> None:
    """Import the command line without garbage collection, and run it."""
    with gc_frozen():
        from app.cli import main as run  # noqa: PLC0415 - imported while the garbage collector is off
    run()


if __name__ == "__main__":
    main()
