"""What a person does in the Dagster UI, by what a person sees: roles and texts."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

PICTURES_VARIABLE = "DAGSTER_DELTA_SCREENSHOTS"
"""Directory that pictures are written to; none are taken where it is not set."""

# The lists of events draw only what is in sight.
_SIZE = (1280, 1600)
_PICTURE_SIZE = (1280, 800)
_LOOKS = 60


class DagsterUI:
    """One tab of a browser."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self._url = url
        self._resize(_SIZE)

    def open(self, path: str) -> None:
        """Go to a page of the UI."""
        self.page.goto(f"{self._url}/{path}")

    def materialize_all(self) -> None:
        """Materialize every asset from the graph of all of them, and wait for the run."""
        self.open("asset-groups/")
        self.page.get_by_role("button", name="Materialize all").click()
        self._follow_launched_run()

    def materialize(self, asset: str) -> None:
        """Materialize an asset from its own page, and wait on the page of the run."""
        self.open(f"assets/{asset}?view=events")
        self.page.get_by_role("button", name="Materialize").first.click()
        self._follow_launched_run()

    def open_launchpad(self, job: str, *, missing: str | None = None) -> None:
        """Go to the Launchpad of a job, and wait until its config is checked.

        `missing`: the field that the operator has to fill in before the run can be launched.
        """
        self.open(f"locations/lake/jobs/{job}/playground")
        button = expect(self.page.get_by_role("button", name="Launch Run"))
        if missing is None:
            button.to_be_enabled()
            expect(self.page.get_by_text("No errors")).to_be_visible()
        else:
            button.to_be_disabled()
            expect(
                self.page.get_by_text(f'Missing required config entry "{missing}"')
            ).to_be_visible()

    @property
    def config(self) -> Locator:
        """The config that stands in the Launchpad."""
        return self.page.locator(".CodeMirror-code").first

    def type_config(self, text: str) -> None:
        """Replace the config in the Launchpad."""
        self.page.locator(".CodeMirror").first.click()
        self.page.keyboard.press("Control+A")
        self.page.keyboard.insert_text(text)
        expect(self.config).to_contain_text(text.strip().splitlines()[-1])
        expect(self.page.get_by_text("No errors")).to_be_visible()

    def launch(self) -> None:
        """Launch the run that the Launchpad describes, and wait on its page until it succeeds."""
        self.page.get_by_role("button", name="Launch Run").click()
        self._wait_for_success()

    def wait_for_tick_reason(self, text: str) -> None:
        """Point at the newest ticks of the open sensor until one of them says this."""
        reason = self.page.get_by_text(text).first
        for _ in range(_LOOKS):
            # The reason of a tick is its tooltip.
            for tag in self.page.get_by_text("0 runs requested").all()[:2]:
                self.page.mouse.move(0, 0)
                with suppress(PlaywrightError):
                    tag.hover(timeout=1000)
                    reason.wait_for(timeout=1000)
                    return
            self.page.wait_for_timeout(1000)
        raise AssertionError(f"no tick says {text!r}")

    def show_markdown(self) -> Locator:
        """Open the first Markdown entry among the events of the run."""
        self.page.get_by_text("[Show Markdown]").first.click()
        return self.page.get_by_role("dialog")

    def take_picture(self, name: str, *, showing: Locator | None = None) -> None:
        """Keep what is to be seen, scrolled to a part of it, where pictures are asked for: one for
        dark pages, and one for light ones.
        """
        directory = os.environ.get(PICTURES_VARIABLE)
        if directory is None:
            return
        self._resize(_PICTURE_SIZE)
        if showing is not None:
            showing.scroll_into_view_if_needed()
        self.page.emulate_media(color_scheme="dark")
        self._take(Path(directory) / f"{name}-dark.png")
        self.page.emulate_media(color_scheme="light")
        self._take(Path(directory) / f"{name}.png")
        self._resize(_SIZE)

    def _take(self, path: Path) -> None:
        # What slides in is given the time to arrive.
        self.page.wait_for_timeout(1000)
        self.page.screenshot(path=path)

    def _follow_launched_run(self) -> None:
        # Other runs may be in the list of runs: only the message knows which one this is.
        self.page.get_by_text("Launched run").wait_for()
        self.page.get_by_text("View", exact=True).first.click()
        self._wait_for_success()

    def _wait_for_success(self) -> None:
        self.page.wait_for_url("**/runs/*")
        success, failure = (
            self.page.get_by_text(f"RUN_{end}").first for end in ("SUCCESS", "FAILURE")
        )
        success.or_(failure).first.wait_for()
        assert failure.count() == 0, self.page.locator("body").inner_text()

    def _resize(self, size: tuple[int, int]) -> None:
        self.page.set_viewport_size({"width": size[0], "height": size[1]})
