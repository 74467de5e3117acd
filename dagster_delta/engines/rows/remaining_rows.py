"""The rows of changed files that stay as they are, which copy-on-write writes again.

Spec: Add File and Remove File.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyroaring import BitMap64

from dagster_delta.engines.plans import ReadPlan, RowRewrite, WriteSpec
from dagster_delta.engines.rows.row_tracking import keep_row_ids
from dagster_delta.protocol.statistics.statistics import parse_statistics_json
from dagster_delta.protocol.values.arrow_columns import boolean_column


def remaining_rows(
    target: ReadPlan, data: WriteSpec, rows: Mapping[str, BitMap64]
) -> RowRewrite | None:
    """The rewrite of the other rows; they keep their ids. None if no row remains, or if deletion
    vectors hide the changed rows.

    `rows`: indexes of the changed rows by path of the file, as in the log.
    """
    if target.configuration.deletion_vectors_enabled or not rows:
        return None
    counts = parse_statistics_json(target.files["stats"], ())["num_records"].to_pylist()
    named = zip(
        target.files["path"].to_pylist(),
        target.files["deletion_vector"].to_pylist(),
        counts,
        strict=True,
    )
    staying = [
        path in rows and _num_live(count, vector) != len(rows[path])
        for path, vector, count in named
    ]
    if not any(staying):
        return None
    source = ReadPlan(
        store=target.store,
        version=target.version,
        configuration=target.configuration,
        files=target.files.filter(boolean_column(staying)),
        columns=target.columns,
    )
    source, tracked = keep_row_ids(source, data)
    return RowRewrite(source, rows, (), keeps_rest=True, data=tracked)


def _num_live(num_records: int | None, vector: Mapping[str, object] | None) -> int | None:
    if num_records is None or vector is None:
        return num_records
    deleted = vector["cardinality"]
    assert isinstance(deleted, int)  # noqa: S101  a required field of the descriptor
    return num_records - deleted
