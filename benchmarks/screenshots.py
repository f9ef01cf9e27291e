"""Pictures of every page, in both themes and two widths: `python -m benchmarks.screenshots FOLDER`.

`make screenshots` puts them into `.cache/screenshots`, to be looked at, and those that documents show into DOCUMENTS.
"""

import io
import shutil
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any, Final

from PIL import Image
from playwright.sync_api import Browser, FloatRect, ViewportSize

from tests.browser import browsing
from tests.dashboard.page_actions import COLOURS
from tests.demo.test_sample_ledger import SampleServer, sample_server

WIDTHS = {"wide": 1280, "narrow": 400}
FIRST_SCREEN: Final[FloatRect] = {"x": 0, "y": 0, "width": 1280, "height": 900}
FIRST_SCREENS = {"overview": "light", "refused-run": "dark"}
"""What the README shows: the first screen of two pages, by its colours."""

DOCUMENTS = Path("docs/images/pages")
DOCUMENTED = ("overview", "refused-run", "overview-light-wide", "run-dark-wide")

COLOURS_KEPT = 256
"""Of a picture: enough for pages, and half the bytes."""


def pages_of(server: SampleServer) -> dict[str, str]:
    """The address of every page, by its name."""
    population = server.items("/v1/populations?q=stroke-registry")[0]["id"]
    refused = server.items("/v1/decisions?decision=refused&limit=1")[0]
    live = server.items("/v1/runs?q=live-segmentation")[0]["id"]
    return {
        "overview": "/",
        "population": f"/accounts/{population}",
        "run": f"/runs/{live}",
        "refused-run": f"/runs/{refused['run']}",
        "decision": f"/decisions/{refused['run']}/{refused['position']}",
        "runs": "/runs",
        "planner": "/planner",
        "decisions": "/decisions",
        "audit": "/audit",
        "approvals": "/approvals",
        "policies": "/policies",
        "experiments": "/experiments",
        "keys": "/keys",
        "alerts": "/alerts",
    }


def main(folder: Path) -> None:
    """Take them all of `serve --sample`.

    Args:
        folder: where they are put; those of an earlier time are replaced.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.png"):
        old.unlink()
    with tempfile.TemporaryDirectory() as place, sample_server(Path(place)) as server, browsing() as browser:
        session = _sign_in(browser, server)
        for (name, width), colours in product(WIDTHS.items(), COLOURS):
            viewport: ViewportSize = {"width": width, "height": 800}
            looks: dict[str, Any] = {"color_scheme": colours, "viewport": viewport, "reduced_motion": "reduce"}
            page = browser.new_context(**looks).new_page()
            page.goto(f"{server.url}/sign-in")
            _keep(page.screenshot(), folder / f"sign-in-{colours}-{name}.png")
            page.context.close()
            page = browser.new_context(**looks, storage_state=session).new_page()
            for each, path in pages_of(server).items():
                page.goto(f"{server.url}{path}")
                page.wait_for_load_state("networkidle")
                _keep(page.screenshot(full_page=True), folder / f"{each}-{colours}-{name}.png")
                if name == "wide" and FIRST_SCREENS.get(each) == colours:
                    _keep(page.screenshot(full_page=True, clip=FIRST_SCREEN), folder / f"{each}.png")
            page.context.close()
    for name in DOCUMENTED:
        shutil.copy(folder / f"{name}.png", DOCUMENTS)


def _sign_in(browser: Browser, server: SampleServer) -> Path:
    """Sign in with the printed link; return the file of the session's cookies."""
    page = browser.new_context().new_page()
    page.goto(server.facts["sign_in_link"]["url"])
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Overview").wait_for()
    page.get_by_text("live-segmentation").first.wait_for()  # a run takes steps
    session = server.folder / "session.json"
    page.context.storage_state(path=session)
    page.context.close()
    return session


def _keep(picture: bytes, where: Path) -> None:
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(COLOURS_KEPT).save(where, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
