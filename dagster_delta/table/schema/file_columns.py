"""Which data files of a table a new column, or its default, affects.

Spec: none of the protocol's own; see `protocol.existing_defaults`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dagster_delta.engines.footers import has_any, lacked_fields, may_lack
from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.features.existing_defaults import EXISTING_DEFAULT_KEY
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.values.arrow_columns import boolean_column
from dagster_delta.protocol.values.partition_values import decode_path

if TYPE_CHECKING:
    import pyarrow as pa

    from dagster_delta.table.read.snapshot import Snapshot


@dataclass(slots=True)
class OlderFiles:
    """Finds the files whose rows take a default when they are read; caches its results."""

    _known: dict[tuple[str, str], bool] = field(default_factory=dict)
    """Whether a file lacks a column, by its path and the schema."""

    def of(self, snapshot: Snapshot) -> pa.Table:
        """The live files that lack a column which has a default in them, as LIVE_FILE_SCHEMA."""
        configuration = snapshot.configuration
        text = configuration.metadata.schema_string
        files = snapshot.live_files()
        if EXISTING_DEFAULT_KEY not in text:
            return files.slice(0, 0)
        schema, mode = configuration.schema, configuration.column_mapping_mode
        doubtful = files.filter(may_lack(files, schema, mode))
        paths = doubtful["path"].to_pylist()
        new = [path for path in paths if (path, text) not in self._known]
        for path, lacked in zip(new, lacked_fields(snapshot.store, new, schema, mode), strict=True):
            self._known[path, text] = bool(lacked)
        return doubtful.filter(boolean_column([self._known[path, text] for path in paths]))


def check_unknown_to_files(
    snapshot: Snapshot, after: TableConfiguration, columns: Sequence[tuple[str, ...]]
) -> None:
    """Check that no file has a column with the name of a new one.

    Under column mapping this is impossible, because the column gets a new name in files. Without
    it, a file may have columns that were never in the schema. `after` is the configuration with
    them.
    """
    paths = snapshot.live_files(["path"])["path"].to_pylist()
    found = has_any(snapshot.store, paths, after.schema, after.column_mapping_mode, columns)
    holding = [path for path, has in zip(paths, found, strict=True) if has]
    if holding:
        names = ", ".join(".".join(path) for path in columns)
        raise InvalidArgument(
            f"{len(holding)} data files have a column called {names} that the table does not know, "
            'and would show its values instead of the default; pass existing_rows="rewrite", or '
            "set delta.columnMapping.mode = name first",
            table=snapshot.store.location.uri,
            version=snapshot.version,
            column=names,
            file=decode_path(holding[0]),
        )
