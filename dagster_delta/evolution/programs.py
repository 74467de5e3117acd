"""Which other programs read and write a table rightly, as measured on tables like it.

`python -m tests.readers` asks the programs, and writes `programs.json`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

import msgspec

from dagster_delta.errors import InvalidArgument, SchemaChangeRefused
from dagster_delta.evolution.required_protocol import required_features
from dagster_delta.protocol.features.column_mapping import PHYSICAL_NAME_KEY
from dagster_delta.protocol.features.registry import effective_features, find_feature
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.features.type_widening import type_changes
from dagster_delta.protocol.schema import (
    ArrayType,
    DataType,
    DecimalType,
    PrimitiveType,
    StructField,
    StructType,
    walk_fields,
)

PROGRAMS_FILE = Path(__file__).with_name("programs.json")
READERS_PROPERTY = "dagsterDelta.readers"
"""Table property: the programs that read the table, separated by commas."""

Act = Literal["rows", "count", "filter", "changes", "time travel", "append"]
"""What a program does with a table; `rows` is a scan without a filter."""

_SCAN: tuple[Act, ...] = ("rows",)
_ROWS: tuple[Act, ...] = (*_SCAN, "count", "filter")
"""What everybody does who reads a table."""
_READS: tuple[Act, ...] = (*_ROWS, "changes", "time travel")
_APPENDS: tuple[Act, ...] = ("append",)

Verdict = Literal["wrong", "refused", "ended", "not offered"]
"""`wrong`: other rows, or wrong rows stored, without an error. `ended`: no answer in time, or the
process ended."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """When a program was asked."""

    version: str
    date: dt.date


class Cell(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What a program does not do rightly with a table. What no cell names is right."""

    table: str
    program: str
    act: Act
    verdict: Verdict
    detail: str


class Note(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What a program does wrongly, in words."""

    tables: str
    """A name, or a pattern of names with `*`."""
    program: str
    """The same."""
    is_append: bool
    text: str
    reason: str
    """Why no choice of this library's avoids it: of what it writes, or of how."""

    def is_about(self, table: str, program: str, *, is_append: bool) -> bool:
        """Whether it explains what a program does wrongly with a table."""
        fits = fnmatchcase(table, self.tables) and fnmatchcase(program, self.program)
        return fits and self.is_append == is_append


class Programs(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was measured."""

    programs: dict[str, Measured] = {}
    tables: tuple[str, ...] = ()
    """The tables that were written and asked about, each with one feature."""
    appended: tuple[str, ...] = ()
    """Those to which the programs appended."""
    instead: dict[str, str] = {}
    """What to do in place of a change, by pattern of the tables that it leads to."""
    notes: tuple[Note, ...] = ()
    cells: tuple[Cell, ...] = ()

    def version_of(self, program: str) -> str:
        """Name and version."""
        return f"{program} {self.programs[program].version}"

    def verdicts(self, table: str, acts: Collection[Act]) -> dict[str, Verdict]:
        """By program, the worst of what it does with such a table, if that is not right."""
        found: dict[str, tuple[int, Verdict]] = {}
        # What every table of these types meets is not an effect of the feature.
        bases = _BASES.get(table, ())
        known = {
            (cell.program, cell.act, cell.verdict) for cell in self.cells if cell.table in bases
        }
        for cell in self.cells:
            if cell.table != table or cell.act not in acts:
                continue
            is_known = (cell.program, cell.act, cell.verdict) in known
            if cell.verdict == "not offered" or is_known:
                continue
            # Who refuses the rows shows no wrong ones.
            is_wrong, is_of_rows = cell.verdict == "wrong", cell.act == "rows"
            rank = 1 if is_wrong else 2 * is_of_rows
            found[cell.program] = max(
                found.get(cell.program, (-1, cell.verdict)), (rank, cell.verdict)
            )
        return {program: verdict for program, (_, verdict) in found.items()}

    def note_on(self, table: str, program: str, *, is_append: bool) -> Note:
        """What a program does wrongly with such a table."""
        return next(
            note for note in self.notes if note.is_about(table, program, is_append=is_append)
        )

    def way_around(self, table: str) -> str | None:
        """What to do instead, if anything else helps."""
        return next((text for key, text in self.instead.items() if fnmatchcase(table, key)), None)


@cache
def load_programs() -> Programs:
    """What was measured."""
    # Spark's workers may import the package from a ZIP file.
    measured = files("dagster_delta.evolution").joinpath(PROGRAMS_FILE.name).read_bytes()
    return msgspec.json.decode(measured, type=Programs)


# What a table is like

_NESTED, _FLAT = "column mapping by name", "column mapping without nested columns"
_MAPPED_BY_FEATURE = "column mapping in a list of features"
_MAPPED_PARTITIONS = "column mapping, partitioned"
_LISTS, _LISTS_OF_STRUCTS = "column mapping with a list", "column mapping with a list of structs"
_DROPPED_COLUMN = "column dropped before another"
_FEED = "change data feed"
_FEED_MAPPED, _FEED_VECTORS = f"{_FEED} with column mapping", f"{_FEED} with deletion vectors"
_FEED_WIDENED = f"{_FEED} with a wider column"
_BASES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            _NESTED,
            "column mapping by id",
            "column mapping that came with a rename",
            "widened: in a struct to a decimal",
        ),
        ("nested types",),
    ),
    _LISTS: (_FLAT,),
    _LISTS_OF_STRUCTS: (_FLAT,),
    _DROPPED_COLUMN: (_FLAT,),
    _FEED_MAPPED: (_FEED, _FLAT),
    _FEED_VECTORS: (_FEED, "deletion vectors"),
    _FEED_WIDENED: (_FEED, "widened: int to bigint"),
}
ADDED_COLUMN, ADDED_FIELD = "column added later", "field of a struct added later"
SHALLOW_CLONE = "shallow clone"
_BY_FEATURE = {
    "allowColumnDefaults": ("column default",),
    "changeDataFeed": (_FEED,),
    "checkpointProtection": ("checkpoint protection",),
    "checkConstraints": ("CHECK constraint", "row against a CHECK"),
    "clustering": ("clustering",),
    "dagsterDelta.existingDefaults": ("default for existing rows",),
    "deletionVectors": ("deletion vectors",),
    "generatedColumns": ("generated column",),
    "identityColumns": ("identity column",),
    "inCommitTimestamp": (
        "in-commit timestamps",
        "in-commit timestamps on a copied log, time travel by timestamp",
    ),
    "invariants": ("NOT NULL column",),
    "rowTracking": ("row tracking",),
    "timestampNtz": ("timestamp_ntz",),
    "typeWidening": ("type widening without a wider column",),
    "v2Checkpoint": ("V2 checkpoint",),
    "vacuumProtocolCheck": ("VACUUM protocol check",),
    "variantType": ("variant",),
}
_SQL_NAMES = {"integer": "int", "long": "bigint"}


def similar_tables(configuration: TableConfiguration) -> tuple[str, ...]:
    """The measured tables that have what this table has."""
    schema = configuration.schema
    used = required_features(schema, configuration.metadata.configuration)
    names: list[str] = []
    for feature in sorted(effective_features(configuration.protocol)):
        row = find_feature(feature)
        # Legacy versions imply features that no column or property uses.
        if feature in used or row is None or row.legacy_writer_version is None:
            names += _BY_FEATURE.get(feature, ())
    names += _name_mapping(configuration)
    for path, field in walk_fields(schema):
        names += (
            _name_widening(change.from_type, change.to_type, is_nested=len(path) > 1)
            for change in type_changes(field)
        )
    names += _name_feed(names)
    if not all(isinstance(field.data_type, PrimitiveType | DecimalType) for field in schema):
        names.append("nested types")
    for name in configuration.partition_columns:
        names.append(f"partitioned by {_type_name(schema.field(name).data_type)}")
    if configuration.partition_columns:
        names.append("append to two partitions")
    if any(field.name.rpartition(".")[0] in schema.names for field in schema if "." in field.name):
        names.append("column c.d beside a struct c")
    return tuple(dict.fromkeys(names))


def _name_feed(names: list[str]) -> Iterator[str]:
    """The measured tables that have what these have, and a change data feed."""
    if _FEED in names:
        parts = {_FEED_MAPPED: "column mapping", _FEED_VECTORS: "deletion vectors"}
        for table, start in (*parts.items(), (_FEED_WIDENED, "widened: ")):
            if any(name.startswith(start) for name in names):
                yield table


def _name_mapping(configuration: TableConfiguration) -> Iterator[str]:
    mode, schema = configuration.column_mapping_mode, configuration.schema
    is_flat = all(isinstance(field.data_type, PrimitiveType | DecimalType) for field in schema)
    # Programs that refuse what a legacy version implies may append to these, and others not read.
    by_feature = mode != "none" and configuration.protocol.writer_features is not None
    if mode == "id":
        yield "column mapping by id"
    elif mode == "name" and not (is_flat and by_feature):
        # Columns that were there before the mapping keep their names in the files.
        if any(not _file_name(field).startswith("col-") for field in schema):
            yield "column mapping that came with a rename"
        else:
            yield _FLAT if is_flat else _NESTED
    if by_feature:
        yield _MAPPED_BY_FEATURE
    first = next(iter(schema), None)
    # DuckDB reads them if the files have the first column under its own name, or not at all.
    if (
        first is not None
        and _file_name(first) != first.name
        and configuration.partition_columns not in ((), (first.name,))
    ):
        yield _MAPPED_PARTITIONS
    if mode != "none":
        types = [field.data_type for _, field in walk_fields(schema)]
        elements = [found.element_type for found in types if isinstance(found, ArrayType)]
        for element in elements:
            yield _LISTS_OF_STRUCTS if isinstance(element, StructType) else _LISTS


def _name_widening(old: DataType, new: DataType, *, is_nested: bool) -> str:
    if isinstance(old, DecimalType) and isinstance(new, DecimalType):
        return f"widened: decimal {'precision' if old.scale == new.scale else 'scale'}"
    names = f"{_type_name(old)} to {_type_name(new)}"
    if is_nested and names.endswith(("decimal", "timestamp_ntz")):
        return "widened: in a struct to a decimal"
    return f"widened: {names}"


def _type_name(data_type: DataType) -> str:
    name = str(data_type).partition("(")[0]
    return _SQL_NAMES.get(name, name)


# What a change means for other programs


def changed_tables(before: TableConfiguration | None, after: TableConfiguration) -> tuple[str, ...]:
    """The measured tables that a table is like after a change, and was not before."""
    had = () if before is None else similar_tables(before)
    names = [name for name in similar_tables(after) if name not in had]
    if before is not None:
        names += _name_additions(before.schema, after.schema)
        if _drops_before_another(before.schema, after.schema):
            names.append(_DROPPED_COLUMN)
    return tuple(names)


def _name_additions(before: StructType, after: StructType) -> Iterator[str]:
    old = dict(walk_fields(before))
    stored = {(path[:-1], _file_name(field)) for path, field in old.items()}
    added = [
        path
        for path, field in walk_fields(after)
        if path not in old and (path[:-1], _file_name(field)) not in stored
    ]
    if any(len(path) == 1 for path in added):
        yield ADDED_COLUMN
    if any(path[:-1] in old for path in added):
        yield ADDED_FIELD


def _drops_before_another(before: StructType, after: StructType) -> bool:
    """Whether files have a column that leaves, and one after it that stays: daft reads no column
    after one that the schema lacks.
    """
    kept = _file_paths(after)
    is_kept = [path in kept for path in _file_paths(before)]
    return is_kept != sorted(is_kept, reverse=True)


def _file_paths(schema: StructType) -> dict[tuple[str, ...], None]:
    """The columns and fields by their names in files, in the order of files."""
    names: dict[tuple[str, ...], tuple[str, ...]] = {}
    for path, field in walk_fields(schema):
        names[path] = (*names.get(path[:-1], path[:-1]), _file_name(field))
    return dict.fromkeys(names.values())


def _file_name(field: StructField) -> str:
    return str(field.metadata.get(PHYSICAL_NAME_KEY, field.name))


def program_lines(before: TableConfiguration | None, after: TableConfiguration) -> Iterator[str]:
    """What a change means for other programs, as list items: those that go wrong without an error
    first. Nothing if it means nothing.
    """
    for table in changed_tables(before, after):
        yield from _lines_of(table)
    if refusal := find_blinded(before, after):
        yield f"- **refused**: {refusal}"


def lines_about_features(features: Collection[str], table: TableConfiguration) -> Iterator[str]:
    """What some of a table's features mean for other programs, as `program_lines`."""
    named = {name for feature in features for name in _BY_FEATURE.get(feature, ())}
    if "columnMapping" in features:
        named |= set(_name_mapping(table))
    for similar in similar_tables(table):
        if similar in named:
            yield from _lines_of(similar)


def lines_about_clone(source: TableConfiguration, *, is_shallow: bool) -> Iterator[str]:
    """What a clone of a table means for other programs, as `program_lines`: it has the features of
    its source, and a shallow one files of another table.
    """
    if is_shallow:
        yield from _lines_of(SHALLOW_CLONE)
    yield from lines_about_features(effective_features(source.protocol) | {"columnMapping"}, source)


def _lines_of(table: str) -> Iterator[str]:
    known = load_programs()
    reads = known.verdicts(table, _READS)
    appends = known.verdicts(table, _APPENDS)
    parts = {
        "**wrong without an error**": _with_notes(known, table, reads, is_append=False),
        "**store wrong rows**": _with_notes(known, table, appends, is_append=True),
        "cannot read": _refused_by(known, table, "rows"),
        "cannot count or filter": _refused_by(known, table, "count", "filter"),
        "cannot read its changes": _refused_by(known, table, "changes"),
        "cannot append": _refused_by(known, table, "append"),
    }
    said = [f"  - {what}: {', '.join(names)}" for what, names in parts.items() if names]
    if said:
        yield f"- other programs, of a table with `{table}`:"
        yield from said
        if (instead := known.way_around(table)) is not None:
            yield f"  - instead: {instead}"
        else:
            yield from _reasons(known, table, reads, appends)


def _reasons(
    known: Programs, table: str, reads: Mapping[str, Verdict], appends: Mapping[str, Verdict]
) -> Iterator[str]:
    """Why what goes wrong is not avoided, where nothing else helps."""
    notes = [
        known.note_on(table, program, is_append=is_append)
        for is_append, verdicts in ((False, reads), (True, appends))
        for program, verdict in sorted(verdicts.items())
        if verdict == "wrong"
    ]
    yield from dict.fromkeys(f"  - why: {note.reason}" for note in notes)


def _with_notes(
    known: Programs, table: str, verdicts: Mapping[str, Verdict], *, is_append: bool
) -> tuple[str, ...]:
    return tuple(
        f"{known.version_of(program)} ({known.note_on(table, program, is_append=is_append).text})"
        for program, verdict in sorted(verdicts.items())
        if verdict == "wrong"
    )


def _refused_by(known: Programs, table: str, *acts: Act) -> tuple[str, ...]:
    verdicts = known.verdicts(table, acts)
    return tuple(known.version_of(name) for name in sorted(verdicts) if verdicts[name] != "wrong")


# Who reads a table


def readers_with(
    configuration: TableConfiguration, verdict: Literal["wrong", "refused"]
) -> tuple[str, ...]:
    """Programs with their versions that give wrong rows of a table without an error, or cannot read
    it: of those that the table names as its readers, or of all.
    """
    known = load_programs()
    named = _readers_of(configuration) or tuple(known.programs)
    read = _verdicts_by_program(configuration)
    found = {program for program, verdicts in read.items() if "wrong" in verdicts.values()}
    if verdict == "refused":
        found = {*_verdicts_by_program(configuration, _SCAN)} - found
    return tuple(known.version_of(program) for program in named if program in found)


def _verdicts_by_program(
    configuration: TableConfiguration, acts: Collection[Act] = _READS
) -> dict[str, dict[str, Verdict]]:
    """By program: what is not right when it reads tables that have what this one has."""
    found: dict[str, dict[str, Verdict]] = {}
    for table in similar_tables(configuration):
        for program, verdict in load_programs().verdicts(table, acts).items():
            found.setdefault(program, {})[table] = verdict
    return found


def known_readers(names: Iterable[str]) -> tuple[str, ...]:
    """The programs of these names, as they were measured. Raises InvalidArgument for others."""
    known = {name.lower(): name for name in load_programs().programs}
    found = []
    for name in names:
        if (lowered := name.strip().lower()) not in known:
            raise InvalidArgument(
                f"{name} is not a program that was measured as a reader of tables: those are "
                f"{', '.join(known.values())}"
            )
        found.append(known[lowered])
    return tuple(dict.fromkeys(found))


def find_blinded(before: TableConfiguration | None, after: TableConfiguration) -> str:
    """Which of the readers that the table names would read it wrongly without an error after a
    change, and do not yet, as a sentence; empty for none.
    """
    if not (readers := _readers_of(after)):
        return ""
    known = load_programs()
    had: dict[str, dict[str, Verdict]] = {}
    if before is not None:
        earlier = _readers_of(before)
        had = {
            name: found
            for name, found in _verdicts_by_program(before, _ROWS).items()
            if name in earlier
        }
    found = _verdicts_by_program(after, _ROWS)
    said = [
        f"{known.version_of(name)}, {table}: {known.note_on(table, name, is_append=False).text}"
        for name in readers
        for table, verdict in found.get(name, {}).items()
        if verdict == "wrong" and table not in had.get(name, {})
    ]
    if not said:
        return ""
    return (
        f"{READERS_PROPERTY} names readers of this table that would give wrong rows without an "
        f"error: {'; '.join(said)}"
    )


def _readers_of(configuration: TableConfiguration | None) -> tuple[str, ...]:
    if configuration is None:
        return ()
    if not (named := configuration.metadata.configuration.get(READERS_PROPERTY, "")):
        return ()
    # Another release may have measured other programs.
    known = load_programs().programs
    return tuple(name for name in map(str.strip, named.split(",")) if name in known)


def check_readers(
    before: TableConfiguration | None, after: TableConfiguration, *, table: str
) -> None:
    """Refuse a change after which a reader that the table names gives wrong rows silently.

    Raises:
        SchemaChangeRefused: there is such a reader.
    """
    if refusal := find_blinded(before, after):
        raise SchemaChangeRefused(
            f"{refusal}; pass force=True where the statement takes it, take the reader out of the "
            "property, or leave the change out",
            table=table,
        )
