"""Runs the pipeline of `definitions.py` and has its tables read by another implementation.

`make demo` calls it. Nothing in here is needed to use the definitions in Dagster.
"""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
import pyarrow as pa

from dagster_delta import DeltaTable
from definitions import (
    ASSETS,
    HERE,
    INGESTED,
    LAKE,
    REFERENCE,
    REPORTS,
    SPARK,
    defs,
    flights,
    flights_enriched,
    late_flights,
)

HOME = HERE / ".demo" / "home"


def main() -> int:
    """Materialize every asset, show what was written, and have it read by another reader."""
    say(f"Flights of 2013 into Delta tables under {LAKE}")
    start_spark()
    every_month = {
        "dagster/asset_partition_range_start": "2013-01-01",
        "dagster/asset_partition_range_end": "2013-12-01",
    }
    with demo_instance() as instance:
        materialize("reference tables", REFERENCE, instance)
        materialize("flights and weather, 12 months in one run", INGESTED, instance, every_month)
        materialize(
            "flights with weather, plane, airport", [flights_enriched], instance, every_month
        )
        materialize("late flights, of all there are", [late_flights], instance)
        materialize(
            "July once more: its rows are replaced", [flights], instance, month="2013-07-01"
        )
        materialize("late flights, of what July changed", [late_flights], instance)
        materialize("reports", REPORTS, instance)
    SPARK.stop_shared_server()
    tables = {
        asset.key.to_user_string(): f"{LAKE}/{asset.key.to_user_string()}" for asset in ASSETS
    }
    show(tables)
    return read_back(tables)


def start_spark() -> None:
    """Start the Spark server that all runs share."""
    say("  starting Spark …", end="")
    began = time.monotonic()
    _ = SPARK.session
    say(f" {time.monotonic() - began:.1f} s")


@contextmanager
def demo_instance() -> Iterator[dg.DagsterInstance]:
    """A Dagster instance that remembers its runs, under `.demo/home`."""
    home = Path(os.environ.get("DAGSTER_HOME") or HOME)
    # Dagster refuses one that is set and empty.
    os.environ["DAGSTER_HOME"] = str(home)
    home.mkdir(parents=True, exist_ok=True)
    settings = home / "dagster.yaml"
    if not settings.exists():
        settings.write_text("telemetry:\n  enabled: false\n")
    with dg.DagsterInstance.get() as instance:
        yield instance


def materialize(
    what: str,
    assets: Sequence[dg.AssetsDefinition],
    instance: dg.DagsterInstance,
    tags: Mapping[str, str] | None = None,
    month: str | None = None,
) -> None:
    """One run, and a line about it."""
    say(f"  {what} …", end="")
    began = time.monotonic()
    result = dg.materialize(
        [*assets, *(each for each in ASSETS if each not in assets)],
        selection=dg.AssetSelection.assets(*assets),
        resources=dict(defs.resources or {}),
        instance=instance,
        tags=dict(tags or {}),
        partition_key=month,
        run_config={"loggers": {"console": {"config": {"log_level": "ERROR"}}}},
    )
    materialized = len(result.get_asset_materialization_events())
    say(f" {materialized} materializations, {time.monotonic() - began:.1f} s")


def show(tables: Mapping[str, str]) -> None:
    """A table of the tables."""
    say(f"\n{'table':<28}{'version':>8}{'rows':>10}{'files':>7}{'bytes':>13}")
    for name, uri in tables.items():
        snapshot = DeltaTable(uri).snapshot()
        say(
            f"{name:<28}{snapshot.version:>8}{snapshot.num_records:>10,}"
            f"{snapshot.num_files:>7}{snapshot.size_bytes:>13,}"
        )


def read_back(tables: Mapping[str, str]) -> int:
    """Compare every table with what the `deltalake` package reads; 1 if any differs."""
    try:
        import deltalake
    except ModuleNotFoundError:
        say("\nInstall deltalake to have the tables read by another implementation as well.")
        return 0
    say("\nRead by deltalake and by us: rows, and a hash that no order changes")
    different = 0
    for name, uri in tables.items():
        ours = fingerprint(DeltaTable(uri).snapshot().scan().to_arrow())
        theirs = fingerprint(deltalake.DeltaTable(uri).to_pyarrow_table())
        different += ours != theirs
        say(f"  {name:<28}{ours[0]:>10,}  {ours[1]:032x}  {'same' if ours == theirs else theirs}")
    return 1 if different else 0


def fingerprint(table: pa.Table) -> tuple[int, int]:
    """The number of rows, and the sum of their hashes."""
    import duckdb

    columns = ", ".join(f'"{name}"' for name in sorted(table.column_names))
    with duckdb.connect() as connection:
        connection.register("rows", table)
        answer = connection.execute(
            f"SELECT count(*), coalesce(sum(hash({columns})::HUGEINT), 0) FROM rows"
        ).fetchone()
    assert answer is not None  # noqa: S101 - an aggregate always answers
    return int(answer[0]), int(answer[1])


def say(text: str, end: str = "\n") -> None:
    """Print at once, also into a pipe."""
    sys.stdout.write(text + end)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
