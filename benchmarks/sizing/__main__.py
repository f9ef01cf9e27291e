"""Print the tables of the model; with `--write`, save them and the plot into docs/."""

import sys

from benchmarks.sizing.report import DOCUMENT, PLOT, marks, plot, tables


def main() -> None:
    """Print the tables; with `--write`, save them and the plot."""
    found = tables()
    for name, text in found.items():
        print(f"{name}\n\n{text}\n")
    if "--write" in sys.argv[1:]:
        page = DOCUMENT.read_text()
        for name, text in found.items():
            begin, end = marks(name)
            before, rest = page.split(begin)
            _, after = rest.split(end)
            page = f"{before}{begin}\n{text}\n{end}{after}"
        DOCUMENT.write_text(page)
        PLOT.write_text(plot())


if __name__ == "__main__":
    main()
