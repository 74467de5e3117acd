"""Row tracking: ids of rows and the versions of their last change, as the log keeps them.

A row's id is the `baseRowId` of its file plus its position there, unless the file holds another in
the materialized column; the same goes for the version of the last change and
`defaultRowCommitVersion`.

Tables by the draft, `rowIds`, are read and not written.

Spec: Row Tracking (Row IDs, in the draft).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from dagster_delta.errors import InvalidTable
from dagster_delta.protocol.actions import AddFile, DomainMetadata
from dagster_delta.protocol.features.column_mapping import PHYSICAL_NAME_KEY
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import PrimitiveType, StructField, StructType
from dagster_delta.protocol.wire_values import DECODING_ERRORS, Int64

ROW_TRACKING_DOMAIN = "delta.rowTracking"
"""Metadata domain that holds the highest row id ever assigned."""
DRAFT_ROW_ID_COLUMN_KEY = "delta.rowIds.physicalColumnName"
"""Property of the draft that names the column with ids."""
ROW_ID_COLUMN_KEY = "delta.rowTracking.materializedRowIdColumnName"
"""Property that names the data-file column with the ids that rows keep."""
ROW_COMMIT_VERSION_COLUMN_KEY = "delta.rowTracking.materializedRowCommitVersionColumnName"
"""Property that names the data-file column with the versions that rows keep."""

ROW_IDS_KEPT_TAG = "delta.rowTracking.preserved"
"""Tag of a commitInfo: whether moved or changed rows kept their ids."""

NO_ROW_IDS = -1
"""The high-water mark of a table in which no id was ever assigned."""


class _HighWaterMark(msgspec.Struct, rename="camel"):
    row_id_high_water_mark: Int64


class MaterializedColumns(msgspec.Struct, frozen=True):
    """Physical names of the columns that keep row ids and versions through a rewrite."""

    row_id: str
    row_commit_version: str | None
    """None in the draft, which has no versions."""

    @property
    def names(self) -> tuple[str, ...]:
        """The existing names, the id column first."""
        version = self.row_commit_version
        return (self.row_id,) if version is None else (self.row_id, version)

    def positions_in(self, columns: Sequence[str]) -> tuple[int | None, int | None]:
        """Positions of the two among some columns; None for a missing one."""
        row_id, row_commit_version = (
            columns.index(name) if name in columns else None
            for name in (self.row_id, self.row_commit_version)
        )
        return row_id, row_commit_version


def parse_high_water_mark(domains: Iterable[DomainMetadata]) -> int:
    """The highest row id that a table ever assigned, -1 if none."""
    highest = NO_ROW_IDS
    for domain in domains:
        if domain.domain != ROW_TRACKING_DOMAIN or domain.removed:
            continue
        try:
            found = msgspec.json.decode(domain.configuration, type=_HighWaterMark)
        except DECODING_ERRORS as error:
            raise InvalidTable(
                f"the metadata domain {ROW_TRACKING_DOMAIN} cannot be parsed ({error}), so no row "
                "id can be assigned; restore an older version of the table"
            ) from error
        highest = max(highest, found.row_id_high_water_mark)
    return highest


def high_water_mark_domain(highest: int) -> DomainMetadata:
    """The domain with the highest row id ever assigned."""
    text = msgspec.json.encode(_HighWaterMark(highest)).decode()
    return DomainMetadata(domain=ROW_TRACKING_DOMAIN, configuration=text, removed=False)


def assign_row_ids(
    adds: Iterable[AddFile], *, version: int | None, highest: int
) -> tuple[tuple[AddFile, ...], int]:
    """The files with ids for their rows, and the highest id that is now assigned.

    Files that have ids keep them. Spec: fresh ids MUST be unique in the table version.
    """
    assigned = []
    for add in adds:
        if add.base_row_id is None:
            if (count := add.num_records) is None:
                raise InvalidTable(
                    "the statistics of a data file do not say how many rows it has, so its rows "
                    "cannot be given ids; write the file again",
                    file=add.path,
                )
            # A file without rows gets no ids, but the field is required.
            add = msgspec.structs.replace(add, base_row_id=highest + 1)
            highest += count
        if version is not None and add.default_row_commit_version is None:
            add = msgspec.structs.replace(add, default_row_commit_version=version)
        assigned.append(add)
    return tuple(assigned), highest


def materialized_columns(configuration: TableConfiguration) -> MaterializedColumns | None:
    """The columns in which rows keep their ids; None if they do not keep them."""
    if not configuration.draft_row_ids_enabled and not configuration.row_tracking_enabled:
        return None
    found = _named_columns(configuration)
    if found is None:
        raise InvalidTable(
            "rows keep their ids, and the table does not name the columns that carry them "
            f"({ROW_ID_COLUMN_KEY}, {ROW_COMMIT_VERSION_COLUMN_KEY}; in the draft "
            f"{DRAFT_ROW_ID_COLUMN_KEY}); unset delta.enableRowTracking and set it again, or name "
            "them with the engine that created the table"
        )
    return found


def _named_columns(configuration: TableConfiguration) -> MaterializedColumns | None:
    properties = configuration.metadata.configuration
    draft = properties.get(DRAFT_ROW_ID_COLUMN_KEY) if configuration.supports("rowIds") else None
    if draft:
        return MaterializedColumns(draft, None)
    row_id = properties.get(ROW_ID_COLUMN_KEY)
    row_commit_version = properties.get(ROW_COMMIT_VERSION_COLUMN_KEY)
    if not row_id or not row_commit_version:
        return None
    return MaterializedColumns(row_id, row_commit_version)


def carried_columns(configuration: TableConfiguration) -> MaterializedColumns | None:
    """The columns in which a configuration keeps row ids; None if it has none.

    Only the result of `tracked_configuration` has them.
    """
    found = _named_columns(configuration)
    return found if found and configuration.schema.get(found.row_id) is not None else None


def with_materialized_columns(
    properties: Mapping[str, str], new_name: Callable[[], str]
) -> dict[str, str]:
    """The properties with names for the columns of row ids; existing names are kept."""
    named = dict(properties)
    named.setdefault(ROW_ID_COLUMN_KEY, f"_row-id-{new_name()}")
    named.setdefault(ROW_COMMIT_VERSION_COLUMN_KEY, f"_row-commit-version-{new_name()}")
    return named


def tracked_configuration(configuration: TableConfiguration) -> TableConfiguration:
    """The configuration with the materialized columns after those of the table.

    Reads with it return row ids, and writes with it keep them. Returns the configuration itself if
    the table does not track rows, or already has the columns.
    """
    columns = materialized_columns(configuration)
    if columns is None or carried_columns(configuration) is not None:
        return configuration
    fields = tuple(
        StructField(
            name,
            PrimitiveType("long"),
            # Readers find it by this name, with or without column mapping; it has no id.
            metadata={PHYSICAL_NAME_KEY: name},
        )
        for name in columns.names
    )
    schema = StructType((*configuration.schema.fields, *fields))
    return configuration.with_schema(schema)
