"""The mark that a column change in progress leaves in the table's metadata.

While a column changes its type online, data files carry both columns: the one that readers see, and
a shadow under another physical name with the converted values. The mark is a table property from
which writers know what to fill; a tag on a data file says that it is filled. Readers of every
engine ignore both: a physical column that the schema does not name is never read.

The property and the tag are not part of the protocol; other writers keep and ignore them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec.structs import replace

from dagster_delta.errors import InvalidTable
from dagster_delta.protocol.actions import AddFile
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import DataType, StructField, StructType, fold_name, inner_parts
from dagster_delta.protocol.wire_values import DECODING_ERRORS

COLUMN_CHANGE_SWITCH = "dagsterDelta.enableColumnChange"
"""Table property: whether columns may change their type online. Absent means no."""
COLUMN_CHANGE_KEY = "dagsterDelta.columnChange"
"""Table property that holds the mark, as JSON."""
COLUMN_CHANGE_TAG = "dagsterDelta.columnChange"
"""Tag of a data file that holds the shadow of the change with this id."""

OnError = Literal["abort", "null"]
"""What happens to a value that does not convert to the new type: the change aborts, or it is
null."""

_ID_KEY = "delta.columnMapping.id"
_STATS_COLUMNS_KEY = "delta.dataSkippingStatsColumns"
_NUM_INDEXED_KEY = "delta.dataSkippingNumIndexedCols"


class Position(msgspec.Struct, frozen=True):
    """Position of the column after the change; `after` is None for the first place."""

    after: str | None = None


class ColumnChange(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One column change: its source and its target."""

    id: str
    """Unique among all changes of all tables."""
    path: tuple[str, ...]
    """Logical path of what changes: a column, a field in structs, an `element`, a `value`."""
    source_id: int
    """Column id of the top-level column, which does not depend on other columns."""
    shadow_schema: str
    """`schemaString` of one field: the top-level column after the change, with its own ids and
    physical names at every depth."""
    cast: str | None = None
    """Spark SQL over the row for the new value; None means CAST."""
    on_error: OnError = "abort"
    position: Position | None = None
    checks: tuple[tuple[str, str], ...] = ()
    """Constraints that the changed rows must satisfy: names and Spark SQL over the changed
    schema."""
    new_name: str | None = None
    """Name of the column, or struct field, after the change; None keeps the name."""
    field_metadata: tuple[tuple[str, str | None], ...] = ()
    """Field metadata that it gets with the change, such as its comment; None removes a key."""

    @classmethod
    def of(cls, configuration: TableConfiguration) -> ColumnChange | None:
        """The change that is in progress, or None."""
        text = configuration.metadata.configuration.get(COLUMN_CHANGE_KEY)
        if text is None:
            return None
        try:
            return msgspec.json.decode(text, type=cls)
        except DECODING_ERRORS as error:
            raise InvalidTable(
                f"the table property {COLUMN_CHANGE_KEY} is damaged ({error}); unset it, which "
                "gives the column change up and loses no row"
            ) from error

    def to_json(self) -> str:
        """The text of the table property."""
        return msgspec.json.encode(self).decode()

    @property
    def shadow(self) -> StructField:
        """The top-level column after the change."""
        return StructType.from_json(self.shadow_schema).fields[0]

    def source(self, schema: StructType) -> StructField | None:
        """The current top-level column; None if it was dropped or replaced since."""
        return next(
            (field for field in schema if field.metadata.get(_ID_KEY) == self.source_id), None
        )

    def target_type(self) -> DataType:
        """The target type."""
        return field_at(self.shadow, self.path[1:])


def field_at(field: StructField, steps: tuple[str, ...]) -> DataType:
    """The type at a path below a field, matched as Delta matches names.

    The steps are names of struct fields, `element`, `key` and `value`. KeyError names the first
    step that does not exist.
    """
    found = field.data_type
    for step in steps:
        child = found.get(step) if isinstance(found, StructType) else None
        found = dict(inner_parts(found))[step] if child is None else child.data_type
    return found


def is_filled(tags: Mapping[str, str | None] | None, change_id: str) -> bool:
    """Whether a data file with these tags holds the shadow of a change."""
    return tags is not None and tags.get(COLUMN_CHANGE_TAG) == change_id


def published_schema(schema: StructType, change: ColumnChange, *, moves: bool = True) -> StructType:
    """The schema in which the shadow replaces the column."""
    source = change.source(schema)
    if source is None:
        raise InvalidTable(
            f"column {'.'.join(change.path)} was dropped or replaced while its type was being "
            "changed; cancel the change",
            column=".".join(change.path),
        )
    fields = [change.shadow if field is source else field for field in schema]
    if moves and change.position is not None:
        fields.remove(change.shadow)
        fields.insert(_find_index(fields, change.position), change.shadow)
    return StructType(tuple(fields))


def filled_configuration(
    configuration: TableConfiguration, change: ColumnChange
) -> TableConfiguration | None:
    """The configuration for writing data files that also hold the shadow, right after the column.

    It is never committed: the mark is removed, and the shadow has statistics if the column has
    them, for use after the change is published. None if the column was dropped.
    """
    source = change.source(configuration.schema)
    if source is None:
        return None
    name = shadow_name(change)
    properties = dict(configuration.metadata.without(COLUMN_CHANGE_KEY).configuration)
    named = configuration.properties.data_skipping_stats_columns
    limit = configuration.properties.data_skipping_num_indexed_cols
    if named is not None and any(fold_name(path[0]) == fold_name(source.name) for path in named):
        properties[_STATS_COLUMNS_KEY] = f"{properties[_STATS_COLUMNS_KEY]},`{name}`"
    elif named is None and limit >= 0:
        properties[_NUM_INDEXED_KEY] = str(limit + _count_leaves(change.shadow.data_type))
    fields = list(configuration.schema)
    fields.insert(fields.index(source) + 1, replace(change.shadow, name=name))
    return TableConfiguration(
        configuration.protocol,
        msgspec.structs.replace(
            configuration.metadata,
            schema_string=StructType(tuple(fields)).to_json(),
            configuration=properties,
        ),
    )


def shadow_name(change: ColumnChange) -> str:
    """The logical name of the shadow while files are written; files do not contain it."""
    return f"__shadow_{change.id}"


def _count_leaves(data_type: DataType) -> int:
    if isinstance(data_type, StructType):
        return sum(_count_leaves(field.data_type) for field in data_type)
    return 1


def _find_index(fields: list[StructField], position: Position) -> int:
    if position.after is None:
        return 0
    names = [fold_name(field.name) for field in fields]
    after = fold_name(position.after)
    # The neighbour may have been dropped since: then the column goes last.
    return names.index(after) + 1 if after in names else len(fields)


def untagged(add: AddFile) -> AddFile:
    """The file without the tag that marks it as filled."""
    tags = {key: value for key, value in (add.tags or {}).items() if key != COLUMN_CHANGE_TAG}
    return msgspec.structs.replace(add, tags=tags or None)
