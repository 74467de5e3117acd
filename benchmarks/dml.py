"""DELETE, UPDATE and MERGE of one row in a hundred, and MERGE of three in ten, spread over every
file, against `deltalake`.

The peer rewrites files in every case; ours does where deletion vectors are off.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks._rows import stream
from benchmarks.harness import Case, Peer, linked_copy, main, ours, theirs

WHERE = "quantity < 10"
RAISE = {"price": "price * 1.1"}


def prepare(directory: Path, size: int) -> None:
    from dagster_delta import DeltaTable

    for name, vectors in (("vectors", "true"), ("plain", "false")):
        table = DeltaTable(str(directory / name), must_exist=False)
        table.append(stream(size), properties={"delta.enableDeletionVectors": vectors})


def prepare_merge(directory: Path, size: int, known_rows: str = "id % 100 = 37") -> None:
    """The tables, and a source of every hundredth row and as many new ones as a tenth of these."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from dagster_delta import DeltaTable

    prepare(directory, size)
    table = DeltaTable(str(directory / "plain"))
    known = table.snapshot().scan(where=known_rows).to_arrow()
    few = known.slice(0, known.num_rows // 10)
    new = few.set_column(0, "id", pc.add(few["id"], 2 * size))
    pq.write_table(pa.concat_tables([known, new]).combine_chunks(), directory / "source.parquet")


def our_merge(name: str) -> Callable[[Path, int], Callable[[], object]]:
    def start(directory: Path, size: int) -> Callable[[], object]:
        import duckdb  # noqa: F401  timed are rows, not imports
        import pandas as pd  # noqa: F401  which the join loads
        import pyarrow.parquet as pq

        from dagster_delta import DeltaTable

        uri = linked_copy(directory / name)
        source = pq.read_table(directory / "source.parquet")
        return lambda: (
            DeltaTable(uri)
            .merge(source, "t.id = s.id")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute()
            .metrics["numTargetRowsUpdated"]
        )

    return start


def their_merge(directory: Path, size: int) -> Callable[[], object]:
    import deltalake
    import pyarrow.parquet as pq

    uri = linked_copy(directory / "plain")
    source = pq.read_table(directory / "source.parquet")
    return lambda: (
        deltalake.DeltaTable(uri)
        .merge(source, "t.id = s.id", source_alias="s", target_alias="t")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute()["num_target_rows_updated"]
    )


def our_delete(name: str) -> Peer:
    return ours(lambda table: table.delete(WHERE).metrics["numDeletedRows"], name, copied=True)


their_delete = theirs(lambda table: table.delete(WHERE)["num_deleted_rows"], "plain", copied=True)
ROWS = 20_000_000
CASES = {
    "delete": Case(
        "delete 1 % of {size} rows, deletion vectors",
        ROWS,
        prepare,
        {"ours": our_delete("vectors"), "deltalake": their_delete},
    ),
    "update": Case(
        "update 1 % of {size} rows, deletion vectors",
        ROWS,
        prepare,
        {
            "ours": ours(
                lambda table: table.update(RAISE, WHERE).metrics["numUpdatedRows"],
                "vectors",
                copied=True,
            ),
            "deltalake": theirs(
                lambda table: table.update(RAISE, predicate=WHERE)["num_updated_rows"],
                "plain",
                copied=True,
            ),
        },
    ),
    "rewrite": Case(
        "delete 1 % of {size} rows, copy-on-write",
        ROWS,
        prepare,
        {"ours": our_delete("plain"), "deltalake": their_delete},
    ),
    "merge": Case(
        "merge 1 % into {size} rows, deletion vectors",
        ROWS,
        prepare_merge,
        {"ours": our_merge("vectors"), "deltalake": their_merge},
    ),
    "merge_rewrite": Case(
        "merge 1 % into {size} rows, copy-on-write",
        ROWS,
        prepare_merge,
        {"ours": our_merge("plain"), "deltalake": their_merge},
    ),
    "large_merge": Case(
        "merge 30 % into {size} rows, deletion vectors",
        ROWS,
        partial(prepare_merge, known_rows="id % 10 < 3"),
        {"ours": our_merge("vectors"), "deltalake": their_merge},
        rounds=2,
    ),
    "large_merge_rewrite": Case(
        "merge 30 % into {size} rows, copy-on-write",
        ROWS,
        partial(prepare_merge, known_rows="id % 10 < 3"),
        {"ours": our_merge("plain"), "deltalake": their_merge},
        rounds=2,
    ),
}

main(__name__, __spec__.name if __spec__ else "", CASES)
