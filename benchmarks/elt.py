"""A small ELT job, after the light mode of LakeBench's ELTBench: load, three merges, OPTIMIZE, VACUUM and
a query, each side in a process of its own.

    pip install tpchgen-cli
    python -m benchmarks.elt --scale 1 --rounds 3

A table of sales is joined from line items, orders and customers of TPC-H. Each merge changes one sale in
a thousand and adds a tenth as many. The start of a JVM is not timed. Seconds of each phase follow the
totals, and all sides must end with the same rows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from benchmarks.harness import Case, main, phase
from benchmarks.tpch import generate

_ON = "t.id = s.id"
_SALES = """
SELECT l_orderkey * 8 + l_linenumber AS id, o_custkey AS customer, c_mktsegment AS segment,
  o_orderdate AS day, l_quantity AS quantity, l_extendedprice * (1 - l_discount) AS price
FROM lineitem JOIN orders ON l_orderkey = o_orderkey JOIN customer ON o_custkey = c_custkey
"""
_CHANGES = """
SELECT id + CASE WHEN id % 10 = 0 THEN {new} ELSE 0 END AS id, customer, segment, day,
  CAST(quantity + 1 AS DECIMAL(15, 2)) AS quantity, price
FROM sales WHERE id % 1000 = {number}
"""
_QUERY = (
    "SELECT segment, sum(quantity) AS quantity, count(*) AS sales FROM written GROUP BY segment"
)
_NAMES = ("lineitem", "orders", "customer")


def _prepare(directory: Path, size: int) -> None:
    generate(directory / "source", size / 1000)


class Side(NamedTuple):
    """The statements of a library on its table."""

    load: Callable[[Any], object]
    merge: Callable[[Any], object]
    optimize: Callable[[], object]
    vacuum: Callable[[], object]
    read: Callable[[], Any]


def _run(side: Side, sql: Callable[[str], Any], register: Callable[[str, Any], object]) -> str:
    """`sql` gives rows as the library takes them, or as tuples those of `_QUERY`."""
    with phase("load"):
        side.load(sql(_SALES))
    for number in range(3):
        with phase("merges"):
            side.merge(sql(_CHANGES.format(number=number + 1, new=10**10 * (number + 1))))
    with phase("OPTIMIZE"):
        side.optimize()
    with phase("VACUUM"):
        side.vacuum()
    with phase("query"):
        register("written", side.read())
        rows = sql(_QUERY)
        rows = rows.to_pylist() if hasattr(rows, "to_pylist") else rows.collect()
    return str(sorted((row["segment"], f"{row['quantity']:.2f}", row["sales"]) for row in rows))


def _on_spark(spark: Any, directory: Path, side: Side) -> Callable[[], str]:
    for name in _NAMES:
        spark.read.parquet(f"{directory}/source/{name}.parquet").createOrReplaceTempView(name)
    spark.sql(_SALES).createOrReplaceTempView("sales")
    return lambda: _run(side, spark.sql, lambda name, rows: rows.createOrReplaceTempView(name))


def _on_duckdb(directory: Path, side: Side) -> Callable[[], str]:
    import duckdb

    connection = duckdb.connect()
    for name in _NAMES:
        source = f"{directory}/source/{name}.parquet"
        connection.execute(f"CREATE VIEW {name} AS FROM read_parquet('{source}')")
    connection.execute(f"CREATE VIEW sales AS {_SALES}")
    return lambda: _run(
        side, lambda text: connection.sql(text).to_arrow_table(), connection.register
    )


def _merge_all(merge: Any) -> None:
    merge.when_matched_update_all().when_not_matched_insert_all().execute()


def _ours(directory: Path, engine: Literal["arrow", "spark"], read: Callable[[Any], Any]) -> Side:
    from dagster_delta import DeltaTable

    table = DeltaTable(tempfile.mkdtemp(dir=directory), must_exist=False)
    return Side(
        load=table.append,
        merge=lambda changes: _merge_all(table.merge(changes, _ON)),
        optimize=lambda: table.optimize(engine=engine),
        vacuum=lambda: table.vacuum(0, enforce_retention=False, dry_run=False),
        read=lambda: read(table.snapshot().scan(columns=["segment", "quantity"])),
    )


def _ours_on_spark(directory: Path, size: int) -> Callable[[], object]:
    from dagster_delta.engines.spark.session.session import local_spark_session

    spark = local_spark_session("benchmark", {"spark.driver.memory": "4g"})
    return _on_spark(spark, directory, _ours(directory, "spark", lambda scan: scan.to_spark(spark)))


def _ours_embedded(directory: Path, size: int) -> Callable[[], object]:
    return _on_duckdb(directory, _ours(directory, "arrow", lambda scan: scan.to_arrow()))


def _delta_spark(directory: Path, size: int) -> Callable[[], object]:
    from benchmarks._delta_spark import FEW_PARTITIONS, delta_spark_session

    off = {"spark.databricks.delta.retentionDurationCheck.enabled": "false"}
    spark = delta_spark_session(settings=FEW_PARTITIONS | off)
    uri = f"{tempfile.mkdtemp(dir=directory)}/table"

    def merge(changes: Any) -> None:
        changes.createOrReplaceTempView("changes")
        spark.sql(
            f"MERGE INTO delta.`{uri}` AS t USING changes AS s ON {_ON} "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        ).collect()

    side = Side(
        load=lambda rows: rows.write.format("delta").save(uri),
        merge=merge,
        optimize=lambda: spark.sql(f"OPTIMIZE delta.`{uri}`").collect(),
        vacuum=lambda: spark.sql(f"VACUUM delta.`{uri}` RETAIN 0 HOURS").collect(),
        read=lambda: spark.read.format("delta").load(uri),
    )
    return _on_spark(spark, directory, side)


def _deltalake(directory: Path, size: int) -> Callable[[], object]:
    from deltalake import DeltaTable, write_deltalake

    uri = f"{tempfile.mkdtemp(dir=directory)}/table"
    side = Side(
        load=lambda rows: write_deltalake(uri, rows),
        merge=lambda changes: _merge_all(
            DeltaTable(uri).merge(changes, _ON, source_alias="s", target_alias="t")
        ),
        optimize=lambda: DeltaTable(uri).optimize.compact(),
        vacuum=lambda: DeltaTable(uri).vacuum(0, dry_run=False, enforce_retention_duration=False),
        read=lambda: DeltaTable(uri).to_pyarrow_table(columns=["segment", "quantity"]),
    )
    return _on_duckdb(directory, side)


# A size of 1,000 is scale 1 of TPC-H: six million sales.
CASES = {
    "spark": Case(
        "ELT of {size} / 1,000 of TPC-H, Spark",
        1000,
        _prepare,
        {"ours": _ours_on_spark, "delta-spark": _delta_spark},
    ),
    "embedded": Case(
        "ELT of {size} / 1,000 of TPC-H, embedded",
        1000,
        _prepare,
        {"ours": _ours_embedded, "deltalake": _deltalake},
    ),
}

if __spec__ is not None:
    main(__name__, __spec__.name, CASES)
