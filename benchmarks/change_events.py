"""AUTO CDC of type 2 beside the same by hand: a window over the events and a MERGE, on delta-spark
and on `deltalake`.

One row in a hundred of a history changes. What is written by hand here only knows events that come
in their order, once, and differ from the row before; AUTO CDC takes all others, too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from benchmarks._rows import batches
from benchmarks.harness import Case, Peer, linked_copy, main

if TYPE_CHECKING:
    import pyarrow as pa

VALUES = ("category", "name", "price", "quantity")
OPTIONS: dict[str, Any] = {
    "keys": ["id"],
    "sequence_by": "seq",
    "stored_as_scd_type": 2,
    "apply_as_deletes": "op = 'D'",
    "except_column_list": ["op", "seq"],
}
# The event of a key that ends its current row has the key to match by; the states of the key are
# inserted by rows that match nothing.
WINDOW = """
WITH timed AS (
    SELECT *, lead(seq) OVER (PARTITION BY id ORDER BY seq) AS until,
        row_number() OVER (PARTITION BY id ORDER BY seq) AS turn FROM events
)
SELECT id AS matched, id, category, name, price, quantity, seq AS since, until FROM timed
    WHERE turn = 1
UNION ALL
SELECT NULL, id, category, name, price, quantity, seq, until FROM timed WHERE op <> 'D'
"""
ON = "t.id = s.matched AND t.__END_AT IS NULL"
INSERTED = {
    **{name: f"s.{name}" for name in ("id", *VALUES)},
    "__START_AT": "s.since",
    "__END_AT": "s.until",
}


def prepare(directory: Path, size: int) -> None:
    """Histories with and without deletion vectors, a small one, and the events."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from dagster_delta import DeltaTable

    def history(rows: int) -> Any:
        for batch in batches(rows):
            values = batch.select(["id", *VALUES])
            bounds = [pa.repeat(pa.scalar(1), len(batch)), pa.nulls(len(batch), pa.int64())]
            names = [*values.schema.names, "__START_AT", "__END_AT"]
            yield pa.RecordBatch.from_arrays([*values.columns, *bounds], names=names)

    for name, vectors, rows in (
        ("vectors", "true", size),
        ("plain", "false", size),
        ("small", "true", 1000),
        ("small_plain", "false", 1000),
    ):
        source = history(rows)
        first = next(source)
        reader = pa.RecordBatchReader.from_batches(first.schema, _chained(first, source))
        table = DeltaTable(str(directory / name), must_exist=False)
        table.append(reader, properties={"delta.enableDeletionVectors": vectors})
    for name, rows in (("events", size), ("few", 1000)):
        pq.write_table(_events(rows), directory / f"{name}.parquet")


def _chained(first: Any, others: Any) -> Any:
    yield first
    yield from others


def _events(rows: int) -> pa.Table:
    """Of every hundredth key: a new state, for some of them two or a delete; and new keys."""
    import pyarrow as pa

    random = np.random.default_rng(7)
    known = random.permutation(np.arange(37, rows, 100))
    again = known[: len(known) // 10]
    ids = np.concatenate([known, again, np.arange(rows, rows + len(known) // 10)])
    turns = np.concatenate([np.full(len(known), 2), np.full(len(ids) - len(known), 3)])
    count = len(ids)
    order = random.permutation(count)
    is_delete = (np.arange(count) >= len(known) * 9 // 10) & (np.arange(count) < len(known))
    return pa.table(
        {
            "id": ids[order],
            "seq": turns[order],
            "op": np.where(is_delete, "D", "U")[order],
            "category": pa.array([f"changed-{number % 50}" for number in range(count)]),
            "name": pa.array([f"user-{number}" for number in range(count)]),
            "price": np.round(random.uniform(1000, 2000, count), 2),
            "quantity": random.integers(2000, 3000, count, dtype=np.int32),
        }
    )


def _written(uri: str) -> str:
    """What the last commit did, from the log."""
    from dagster_delta import DeltaTable

    table = DeltaTable(uri)
    return f"{table.snapshot().num_records} rows after version {table.version()}"


def ours(name: str, engine: Literal["arrow", "spark"]) -> Peer:
    """AUTO CDC by this library."""

    def start(directory: Path, size: int) -> Callable[[], object]:
        import pyarrow.parquet as pq

        from dagster_delta import DeltaTable

        uri = linked_copy(directory / name)
        events: Any
        events, few = (pq.read_table(directory / f"{name}.parquet") for name in ("events", "few"))
        if engine == "spark":
            from benchmarks._delta_spark import FEW_PARTITIONS, delta_spark_session

            session = delta_spark_session(settings=FEW_PARTITIONS)
            few = session.read.parquet(str(directory / "few.parquet"))
            events = session.read.parquet(str(directory / "events.parquet"))
        # Timed are rows, not imports.
        DeltaTable(linked_copy(directory / "small")).apply_changes(few, **OPTIONS)

        def run() -> str:
            DeltaTable(uri).apply_changes(events, **OPTIONS)
            return _written(uri)

        return run

    return start


def delta_spark(directory: Path, size: int) -> Callable[[], object]:
    """The window and the MERGE on delta-spark, in a session that has run it once."""
    from benchmarks._delta_spark import FEW_PARTITIONS, delta_spark_session

    session = delta_spark_session(settings=FEW_PARTITIONS)

    def apply(uri: str, events: str) -> None:
        session.read.parquet(str(directory / events)).createOrReplaceTempView("events")
        columns, values = ", ".join(INSERTED), ", ".join(INSERTED.values())
        session.sql(
            f"MERGE INTO delta.`{uri}` t USING ({WINDOW}) s ON {ON} "
            "WHEN MATCHED THEN UPDATE SET t.__END_AT = s.since "
            f"WHEN NOT MATCHED AND s.matched IS NULL THEN INSERT ({columns}) VALUES ({values})"
        ).collect()

    apply(linked_copy(directory / "small"), "few.parquet")
    uri = linked_copy(directory / "vectors")

    def run() -> str:
        apply(uri, "events.parquet")
        return _written(uri)

    return run


def deltalake(directory: Path, size: int) -> Callable[[], object]:
    """The window in DuckDB, and the MERGE by `deltalake`."""
    import deltalake as peer
    import duckdb
    import pyarrow.parquet as pq

    def apply(uri: str, events: Any) -> None:
        with duckdb.connect() as connection:
            connection.register("events", events)
            source = connection.sql(WINDOW).to_arrow_table()
        (
            peer.DeltaTable(uri)
            .merge(source, ON, source_alias="s", target_alias="t")
            .when_matched_update({"__END_AT": "s.since"})
            .when_not_matched_insert(INSERTED, "s.matched IS NULL")
            .execute()
        )

    events, few = (pq.read_table(directory / f"{name}.parquet") for name in ("events", "few"))
    apply(linked_copy(directory / "small_plain"), few)
    uri = linked_copy(directory / "plain")

    def run() -> str:
        apply(uri, events)
        return _written(uri)

    return run


ROWS = 4_000_000
TITLE = "AUTO CDC, type 2: 1 % changes into {size} rows"
CASES = {
    "vectors": Case(
        f"{TITLE}, deletion vectors",
        ROWS,
        prepare,
        {
            "ours": ours("vectors", "arrow"),
            "deltalake": deltalake,
            "delta-spark": delta_spark,
        },
    ),
    "spark": Case(
        f"{TITLE}, deletion vectors, on Spark",
        ROWS,
        prepare,
        {"ours": ours("vectors", "spark"), "delta-spark": delta_spark},
    ),
    "plain": Case(
        f"{TITLE}, copy-on-write",
        ROWS,
        prepare,
        {"ours": ours("plain", "arrow"), "deltalake": deltalake},
    ),
}

main(__name__, __spec__.name if __spec__ else "", CASES)
