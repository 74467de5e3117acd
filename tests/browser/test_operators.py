"""What operators do in the Dagster UI, done in a browser: jobs, sensors, and what they show."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dagster_delta.table.delta_table import DeltaTable
from tests.browser.dagster_server import DagsterServer

playwright = pytest.importorskip("playwright.sync_api", reason="the browser needs playwright")
deltalake = pytest.importorskip("deltalake", reason="deltalake writes as somebody else here")

from playwright.sync_api import expect  # noqa: E402 - only where there is one

from tests.browser.dagster_ui import DagsterUI  # noqa: E402

pytestmark = pytest.mark.browser


def test_maintenance_is_launched_and_shows_the_table_before_and_after(
    ui: DagsterUI, materialized: DagsterServer
) -> None:
    table = f"{materialized.lake}/fleet/planes"
    for tail_number in ("N104UW", "N10575", "N105UW"):
        rows = {"tailnum": [tail_number], "seats": pa.array([55], pa.int32())}
        deltalake.write_deltalake(table, pa.table(rows), mode="append")

    ui.open_launchpad("delta_maintenance")
    expect(ui.config).to_contain_text("dry_run: true")
    expect(ui.page.get_by_text("Only report what would be deleted.").first).to_be_visible()
    expect(ui.page.get_by_text("There are: planes, airports, lowest_airport.")).to_be_visible()
    ui.take_picture("maintenance-launchpad")
    ui.type_config("tables:\n- planes\n")
    ui.launch()
    report = ui.show_markdown()
    expect(report).to_contain_text("VACUUM (dry run): would delete 0 files")
    expect(report.get_by_role("row", name="rows 6 6")).to_be_visible()
    expect(report.get_by_role("row", name="files 4 1")).to_be_visible()
    ui.take_picture("maintenance-report")

    assert DeltaTable(table).snapshot().num_files == 1
    assert deltalake.DeltaTable(table).to_pyarrow_table().num_rows == 6


def test_a_schema_change_is_planned_done_and_seen_on_the_page_of_the_asset(
    ui: DagsterUI, materialized: DagsterServer
) -> None:
    table = DeltaTable(f"{materialized.lake}/fleet/airports")
    change = (
        "table: airports\n"
        "statement: ADD COLUMN runways INT, ALTER COLUMN altitude_feet TYPE BIGINT\n"
        "enable_features: true\n"
    )

    ui.open_launchpad("delta_schema_change", missing="table")
    expect(ui.config).to_contain_text("dry_run: true")
    ui.type_config(change)
    ui.launch()
    plan = ui.show_markdown()
    expect(plan).to_contain_text("widen column altitude_feet from integer to long")
    expect(plan).to_contain_text("metadata only")
    expect(plan).to_contain_text("lowest_airport")
    ui.take_picture("schema-change-plan")
    assert table.version() == 0

    ui.open_launchpad("delta_schema_change")
    ui.type_config(f"{change}dry_run: false\n")
    ui.launch()
    table.refresh()
    assert [each.name for each in table.schema().fields] == ["faa", "altitude_feet", "runways"]

    ui.open("assets/airports?view=events")
    expect(ui.page.get_by_text("Observed in run")).to_be_visible()
    expect(ui.page.get_by_role("row", name="delta/dry_run false")).to_be_visible()
    columns = ui.page.get_by_role("row", name="dagster/column_schema")
    expect(columns).to_contain_text("runways")
    expect(columns).to_contain_text("bigint")
    ui.take_picture("schema-change-on-the-asset", showing=columns)


def test_the_health_of_all_tables_is_one_page(ui: DagsterUI, materialized: DagsterServer) -> None:
    DeltaTable(f"{materialized.lake}/fleet/planes").checkpoint()
    ui.materialize("lake_health")
    ui.open("assets/lake_health?view=events")
    for table in ("planes", "airports", "lowest_airport"):
        expect(ui.page.get_by_role("cell", name=table, exact=True).first).to_be_visible()
    expect(
        ui.page.get_by_text("Files and logs: 0 of 3 tables beyond a threshold").first
    ).to_be_visible()


def test_a_commit_by_somebody_else_becomes_a_run_once_the_sensor_is_on(
    ui: DagsterUI, server: DagsterServer
) -> None:
    bookings = f"{server.lake}/bookings"
    deltalake.write_deltalake(bookings, pa.table({"seat": ["1A"]}))
    ui.open("locations/lake/sensors/bookings_changed")
    ui.page.get_by_role("row", name="Running").get_by_role("checkbox").press("Space")
    # The first tick remembers what is there already.
    ui.page.get_by_text("0 runs requested").first.wait_for()

    deltalake.write_deltalake(bookings, pa.table({"seat": ["2B", "2C"]}), mode="append")
    ui.page.get_by_role("button", name="Runs", exact=True).click()
    tag = "delta/commits: bookings version 1 (WRITE, 2 rows)"
    expect(ui.page.get_by_text(tag).first).to_be_visible()
    expect(ui.page.get_by_text("Success", exact=True).first).to_be_visible()


def test_ticks_say_why_they_ran_nothing(ui: DagsterUI, server: DagsterServer) -> None:
    bookings = f"{server.lake}/quiet_bookings"
    deltalake.write_deltalake(bookings, pa.table({"seat": ["1A"]}))
    ui.open("locations/lake/sensors/many_bookings")
    ui.page.get_by_role("row", name="Running").get_by_role("checkbox").press("Space")
    ui.wait_for_tick_reason(f"No new commits: {bookings} (version 0)")

    deltalake.write_deltalake(bookings, pa.table({"seat": ["2B"]}), mode="append")
    ui.wait_for_tick_reason("version 1 with 1 row, until 1,000 rows")
    ui.take_picture("sensor-ticks")
