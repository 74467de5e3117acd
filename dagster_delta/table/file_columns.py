"""Which data files have a column and which do not: by the log where it tells, by footers elsewhere.

Spec: Per-file Statistics; footers of data files are Parquet's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.engines.parquet.file_projection import num_steps_found
from dagster_delta.engines.parquet.source import open_parquet
from dagster_delta.errors import DataFileMissing, InvalidArgument, InvalidTable
from dagster_delta.protocol.arrow_columns import boolean_column
from dagster_delta.protocol.existing_defaults import defaulted_columns, fields_with_existing_default
from dagster_delta.protocol.partition_values import decode_path
from dagster_delta.protocol.statistics import parse_statistics_json
from dagster_delta.protocol.table_configuration import TableConfiguration
from dagster_delta.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from dagster_delta.table.snapshot import Snapshot

__all__ = ["OlderFiles", "check_unknown_to_files"]

_FOOTER_READERS = 16


@dataclass(slots=True)
class OlderFiles:
    """Finds the files whose rows take a default when they are read; keeps what it found out."""

    _known: dict[tuple[str, str], bool] = field(default_factory=dict)
    """Whether a file lacks a column, by its path and the schema."""

    def of(self, snapshot: Snapshot) -> Any:
        """The live files that lack a column which has a default in them, as LIVE_FILE_SCHEMA.

        Raises:
            DataFileMissing, InvalidTable, StorageFailure: of a file.
        """
        configuration = snapshot.configuration
        files = snapshot.live_files()
        paths = [path for path, _ in fields_with_existing_default(configuration.schema)]
        if not paths or not files.num_rows:
            return files.slice(0, 0)
        doubtful = files.filter(_may_lack(files, configuration))
        schema, mode = configuration.schema, configuration.column_mapping_mode

        def lacks_any(found: Any) -> bool:
            return any(
                num_steps_found(found, schema, path, mode) == len(path) - 1 for path in paths
            )

        text = configuration.metadata.schema_string
        new = [p for p in doubtful["path"].to_pylist() if (p, text) not in self._known]
        for path, lacking in zip(new, _judge(snapshot.store, new, lacks_any), strict=True):
            self._known[path, text] = lacking
        flags = [self._known[path, text] for path in doubtful["path"].to_pylist()]
        return doubtful.filter(boolean_column(flags))


def _may_lack(files: Any, configuration: TableConfiguration) -> Any:
    """Where the log does not count the nulls of every column in question."""
    columns = defaulted_columns(configuration.schema, configuration.column_mapping_mode)
    statistics = parse_statistics_json(files["stats"], columns)
    unknown = boolean_column([False] * files.num_rows)
    for index in range(len(columns)):
        unknown = pc.or_(unknown, pc.is_null(statistics[f"null_count.{index}"]))
    return unknown


def check_unknown_to_files(
    snapshot: Snapshot, after: TableConfiguration, paths: Sequence[tuple[str, ...]]
) -> None:
    """Make sure that no file has a column of the name of a new one.

    Under column mapping none can have, as the column has a new name in files. Elsewhere a file that
    was converted may have columns that the schema never knew.

    Args:
        snapshot: that the columns are added to.
        after: the configuration with them.
        paths: of the columns.

    Raises:
        InvalidArgument: a file has one.
        DataFileMissing, InvalidTable, StorageFailure: of a file.
    """
    schema, mode = after.schema, after.column_mapping_mode

    def has_one(found: Any) -> bool:
        return any(num_steps_found(found, schema, path, mode) == len(path) for path in paths)

    files = snapshot.live_files(["path"])["path"].to_pylist()
    holding = [
        path for path, has in zip(files, _judge(snapshot.store, files, has_one), strict=True) if has
    ]
    if holding:
        names = ", ".join(".".join(path) for path in paths)
        raise InvalidArgument(
            f"{len(holding)} data files have a column called {names} that the table does not know, "
            'and would show its values instead of the default; pass existing_rows="rewrite", or '
            "set delta.columnMapping.mode = name first",
            table=snapshot.store.location.uri,
            version=snapshot.version,
            column=names,
            file=decode_path(holding[0]),
        )


def _judge(store: ObjectStore, paths: Sequence[str], judge: Callable[[Any], bool]) -> list[bool]:
    """What holds of the `pyarrow.Schema` of each file."""

    def look(path: str) -> bool:
        decoded = decode_path(path)
        try:
            return judge(open_parquet(store.open_input(decoded)).schema_arrow)
        except FileNotFoundError as error:
            raise DataFileMissing(
                "the log names a data file that is not there: restore the file, or restore the "
                "table to an older version",
                table=store.location.uri,
                file=decoded,
            ) from error
        except pa.ArrowException as error:
            raise InvalidTable(
                f"the data file cannot be read: {error}", table=store.location.uri, file=decoded
            ) from error

    with ThreadPoolExecutor(_FOOTER_READERS, "delta-footer") as readers:
        return list(readers.map(look, paths))
