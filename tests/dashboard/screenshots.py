"""Pictures of every page, for the documents: `python -m tests.dashboard.screenshots FOLDER`, or `make screenshots`."""

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser

from tests.browser import browsing
from tests.conftest import LiveServer
from tests.dashboard.conftest import serving
from tests.dashboard.page_actions import COLOURS, Colours
from tests.dashboard.sample_hospital import Hospital, build

WIDTHS = {"wide": 1280, "narrow": 390}
COLOURS_KEPT = 128
"""Of a picture: enough for pages, and a third of the bytes."""


def pages_of(hospital: Hospital) -> dict[str, str]:
    """The address of every page, by its name."""
    run = hospital.ids["imaging/segmentation/unet"]
    return {
        "overview": "/",
        "budget": f"/accounts/{hospital.ids['stroke-registry']}",
        "run": f"/runs/{run}",
        "runs": "/runs",
        "planner": "/planner",
        "decisions": "/decisions",
        "audit": "/audit",
        "approvals": "/approvals",
        "policies": "/policies",
        "keys": "/keys",
        "alerts": "/alerts",
    }


def main(folder: Path) -> None:
    """Take them all.

    Args:
        folder: where they are put; those of an earlier time are replaced.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.png"):
        old.unlink()
    with tempfile.TemporaryDirectory() as place:
        hospital = build(Path(place))
        server = serving(hospital)
        try:
            with browsing() as browser:
                for name, width in WIDTHS.items():
                    for colours in COLOURS:
                        _take(browser, server, pages_of(hospital), folder, f"{colours}-{name}", width, colours)
        finally:
            server.stop()


def _take(  # noqa: PLR0917 - one visit, and all that makes it another one
    browser: Browser, server: LiveServer, pages: dict[str, str], folder: Path, kind: str, width: int, colours: Colours
) -> None:
    context = browser.new_context(
        color_scheme=colours, viewport={"width": width, "height": 800}, reduced_motion="reduce"
    )
    page = context.new_page()
    page.goto(f"{server.url}/sign-in")
    _keep(page.screenshot(), folder / f"sign-in-{kind}.png")
    page.get_by_label("API key").fill(server.key("admin"))
    page.get_by_role("button", name="Sign in").click()
    for name, path in pages.items():
        page.goto(f"{server.url}{path}")
        page.wait_for_load_state("networkidle")
        _keep(page.screenshot(full_page=True), folder / f"{name}-{kind}.png")
    context.close()


def _keep(picture: bytes, where: Path) -> None:
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(COLOURS_KEPT).save(where, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
