"""What the pages of assets, checks and sensors show of Delta tables."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pyarrow as pa
import pytest

from tests.browser.dagster_server import DagsterServer, serve

playwright = pytest.importorskip("playwright.sync_api", reason="the browser needs playwright")
deltalake = pytest.importorskip("deltalake", reason="deltalake writes as somebody else here")

from playwright.sync_api import expect  # noqa: E402 - only where there is one

from tests.browser.dagster_ui import DagsterUI  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser

_MODULE = "tests.browser.catalog_definitions"
_LAKE = "DAGSTER_DELTA_BROWSER_LAKE"
_MONTHS = {
    "dagster/asset_partition_range_start": "2024-01-01",
    "dagster/asset_partition_range_end": "2024-03-01",
}


@pytest.fixture(scope="module")
def server(browser: Browser) -> Iterator[DagsterServer]:
    """A server after a run of each kind."""
    with (
        tempfile.TemporaryDirectory(prefix="dagster-", ignore_cleanup_errors=True) as directory,
        pytest.MonkeyPatch.context() as patch,
        serve(Path(directory), _MODULE) as server,
    ):
        patch.setenv(_LAKE, str(server.lake))
        deltalake.write_deltalake(server.lake / "bookings", pa.table({"seat": ["1A", "2B"]}))
        _run(server, importlib.import_module(_MODULE).defs)
        yield server


def _run(server: DagsterServer, definitions: dg.Definitions) -> None:
    with dg.DagsterInstance.from_config(str(server.home)) as instance:
        for job, tags in (("make_planes", {}), ("make_flights", _MONTHS), ("observe_bookings", {})):
            run = definitions.resolve_job_def(job).execute_in_process(instance=instance, tags=tags)
            assert run.success


def test_a_materialization_shows_its_delta_metadata_first(ui: DagsterUI) -> None:
    ui.open("assets/planes?view=events")
    first = ui.page.get_by_role("row").filter(has_text="/").first
    expect(first).to_contain_text("delta/version")
    expect(ui.page.get_by_role("row", name="delta/rows_inserted 3")).to_be_visible()
    expect(ui.page.get_by_text("delta/rows_deleted")).to_have_count(0)
    sample = ui.page.get_by_role("row", name="delta/sample_rows")
    expect(sample.get_by_role("row", name="N10156 55 •••")).to_be_visible()
    expect(sample).not_to_contain_text("Ann")
    history = ui.page.get_by_role("row", name="delta/history")
    expect(history.get_by_role("row", name="MERGE")).to_contain_text("3 inserted")
    ui.take_picture("materialization-metadata")


def test_each_partition_of_one_run_shows_its_own_rows(ui: DagsterUI) -> None:
    for month, rows in (("2024-01-01", 1), ("2024-03-01", 3)):
        ui.open(f"assets/flights?view=partitions&partition={month}")
        for key in ("delta/rows_written", "delta/files_added", "dagster/partition_row_count"):
            count = 1 if "files" in key else rows
            expect(ui.page.get_by_role("row", name=f"{key} {count}")).to_be_visible()
    ui.take_picture("partition-metadata")


def test_an_asset_shows_its_location_and_kind_before_its_first_run(
    ui: DagsterUI, server: DagsterServer
) -> None:
    ui.open("assets/not_made_yet?view=overview")
    expect(ui.page.get_by_text("Delta Lake")).to_be_visible()
    expect(ui.page.get_by_text(f"{server.lake}/public/not_made_yet")).to_be_visible()


def test_an_external_table_shows_columns_rows_and_size(ui: DagsterUI) -> None:
    ui.open("assets/bookings?view=overview")
    expect(ui.page.get_by_text("Row count")).to_be_visible()
    expect(ui.page.get_by_role("row", name="delta/live_files")).to_be_visible()
    expect(ui.page.get_by_text("cursor", exact=False)).to_have_count(0)
    ui.take_picture("external-table")
    ui.open("assets/bookings?view=events")
    columns = ui.page.get_by_role("row", name="dagster/column_schema")
    expect(columns).to_contain_text("seat")


def test_a_failed_check_shows_its_rows_as_a_table_with_masks(ui: DagsterUI) -> None:
    ui.open("assets/planes?view=checks&checkDetail=delta_unique")
    expect(ui.page.get_by_text("in more than one row: 1 key (owner)")).to_be_visible()
    expect(ui.page.get_by_role("row", name="••• 3", exact=True)).to_be_visible()
    ui.take_picture("check-failing-rows")
