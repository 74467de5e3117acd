"""One server and one browser for all of these tests, and a tab for each."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.dagster_server import DagsterServer, serve

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.browser.dagster_ui import DagsterUI

PATIENCE_MS = 120_000
"""A busy machine is slow, and that is no failure."""


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Headless Chromium, or a skip that says what is missing."""
    names = ("chromium", "chromium-browser", "google-chrome")
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip(f"no browser: install chromium, or set CHROMIUM (looked for {names})")
    pytest.importorskip("dagster_webserver", reason="the UI needs dagster-webserver")
    driver = pytest.importorskip("playwright.sync_api", reason="the browser needs playwright")
    driver.expect.set_options(timeout=PATIENCE_MS)
    with driver.sync_playwright() as playwright:
        # Containers have no sandbox to offer, and the only pages are our own.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def server(browser: Browser) -> Iterator[DagsterServer]:
    """A server with nothing in it; it is not started where there is no browser to look at it."""
    # Paths are seen in pictures.
    with (
        tempfile.TemporaryDirectory(prefix="dagster-", ignore_cleanup_errors=True) as directory,
        serve(Path(directory)) as server,
    ):
        yield server


@pytest.fixture
def ui(browser: Browser, server: DagsterServer) -> Iterator[DagsterUI]:
    """A new tab."""
    from tests.browser.dagster_ui import DagsterUI

    context = browser.new_context(locale="en-US", timezone_id="UTC")
    context.set_default_timeout(PATIENCE_MS)
    context.set_default_navigation_timeout(PATIENCE_MS)
    yield DagsterUI(context.new_page(), server.url)
    context.close()


@pytest.fixture(scope="package")
def materialized(browser: Browser, server: DagsterServer) -> DagsterServer:
    """The server, once its assets were materialized: from the UI, as everything here."""
    from tests.browser.dagster_ui import DagsterUI

    page = browser.new_page()
    page.set_default_timeout(PATIENCE_MS)
    DagsterUI(page, server.url).materialize_all()
    page.close()
    return server
