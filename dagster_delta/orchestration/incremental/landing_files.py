"""Files in a landing zone: which match a location, and what is loaded of them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import pyarrow as pa

from dagster_delta import clock
from dagster_delta.engines import joined_schema
from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.incremental.file_rows import (
    BadRow,
    FileColumns,
    FileOptions,
    FileRows,
    NewColumns,
    UnreadableFile,
    with_new_fields,
)
from dagster_delta.orchestration.metadata_keys import counted
from dagster_delta.storage import ObjectMeta, ObjectStore, canonical_uri, open_store

OnBadRows = Literal["fail", "quarantine"]
"""What happens to a row that cannot be read, or has a value that does not fit its column."""
OnBadFiles = Literal["fail", "skip"]
"""What happens to a file that cannot be read."""


class LandingZone(msgspec.Struct, frozen=True):
    """Where files arrive, and how they are read."""

    source: str
    """A file, a directory, or a pattern: `s3://landing/flights/*.csv`, `/in/**/*.json`."""
    storage_options: Mapping[str, object] = msgspec.field(default_factory=dict)
    minimum_age_seconds: float = 0
    """Younger files may still be written, and are left for the next run."""
    options: FileOptions = msgspec.field(default_factory=FileOptions)
    new_columns: NewColumns | None = None
    """None: `fail` if the columns are given, otherwise as the table takes new columns."""
    on_bad_rows: OnBadRows = "fail"
    on_bad_files: OnBadFiles = "fail"

    # Storage options may hold secrets.
    def __repr__(self) -> str:
        return f"LandingZone({self.source!r})"

    @property
    def leaves_out(self) -> bool:
        """Whether rows or files may be left out, so that all are read before any is loaded."""
        return self.on_bad_rows != "fail" or self.on_bad_files != "fail"

    def files(self) -> LandingFiles:
        """The matching files, the oldest first. Names that begin with `_` or `.` do not match.

        Files without bytes are left out: somebody may be about to write them.
        """
        parts = self.source.rstrip("/").split("/")
        first = next((i for i, part in enumerate(parts) if set(part) & set("*?")), len(parts))
        matches = _make_matcher("/".join(parts[first:]) or "**")
        # The last part of `s3://bucket` is not a file.
        may_be_file = first == len(parts) and (parts[-2:-1] != [""] or len(parts) == 2)
        store = self._open_store(parts[:-1] if may_be_file else parts[:first])
        if may_be_file and (file := store.head(parts[-1])) is not None:
            found = [file]
        else:
            store = self._open_store(parts[:first])
            _check_directory(store, is_file=first == len(parts) and "." in parts[-1])
            listed = list(store.list_recursive())
            found = [file for file in listed if matches(file.path)]
            _check_no_table(listed, found, self.source)
        # Another clock may be ahead of this one, so that a time alone says nothing.
        age_ms = self.minimum_age_seconds * 1000
        newest_ms = clock.now_ms() - age_ms if age_ms else math.inf
        ready: list[ObjectMeta] = []
        waiting: list[ObjectMeta] = []
        for file in sorted(found, key=lambda file: (file.modified_ms, file.path)):
            is_complete = file.size_bytes > 0 and file.modified_ms <= newest_ms
            (ready if is_complete else waiting).append(file)
        return LandingFiles(self, store, ready, waiting)

    def _open_store(self, parts: Sequence[str]) -> ObjectStore:
        root = "/".join(parts) or ("/" if parts else ".")
        return open_store(root, self.storage_options)


class LandingFiles(msgspec.Struct, frozen=True):
    """Some files of a landing zone."""

    zone: LandingZone
    store: ObjectStore
    files: Sequence[ObjectMeta]
    waiting: Sequence[ObjectMeta] = ()
    """Files that match and are left for a later run."""

    @property
    def waits_for(self) -> str:
        """Which files are left for a later run, and why; empty if none is."""
        if not self.waiting:
            return ""
        return (
            f"left for a later run: {counted(len(self.waiting), 'file')}, such as "
            f"{self.uri(self.waiting[-1])}, without bytes or modified less than "
            f"{self.zone.minimum_age_seconds:g} seconds ago by the clock of this machine"
        )

    def uri(self, file: ObjectMeta) -> str:
        """Location of a file, by which a table remembers that it was loaded."""
        return canonical_uri(self.store.resolve_uri(file.path))

    def named(self, name: str) -> Sequence[ObjectMeta]:
        """The files with a location, a path below the directory of the source, or a pattern of such
        paths. Raises InvalidArgument if there is none.
        """
        matches = _make_matcher(name)
        files = [file for file in self.files if name == self.uri(file) or matches(file.path)]
        if not files:
            raise InvalidArgument(
                f"{name} is to be loaded again, and none of {counted(len(self.files), 'file')} of "
                f"{self.zone.source} has this location or path: write it as in the loaded_files of "
                "the metadata, or as a pattern such as *.csv"
            )
        return files

    def check(self, known: pa.Schema, *, evolves: bool = True) -> CheckedFiles:
        """What is loaded of the files. Rows are read for what may be left out alone.

        Args:
            known: the columns of the table, whose types formats take that have none of their own.
            evolves: whether the table takes new columns.

        Raises:
            SchemaMismatch: a file has a new column, or the types of files do not go together.
            InvalidArgument: a file, or a row of it, cannot be read.
        """
        zone, checked, bad_files = self.zone, list[CheckedFile](), dict[str, str]()
        columns = zone.options.columns
        types = known if columns is None else columns
        new_columns = zone.new_columns
        if new_columns is None or not types.names:
            new_columns = "evolve" if columns is None and (evolves or not known.names) else "fail"
        for file in self.files:
            rows = FileRows(zone.options, self.store, file, self.uri(file))
            try:
                found = rows.find_columns(types, new_columns)
                if found.has_bad_rows and zone.on_bad_rows == "fail":
                    raise rows.located(found, found.schema)
                checked.append(CheckedFile(rows, found))
            except UnreadableFile as error:
                bad_files[rows.uri] = _left_out(zone, rows, error)
        schema = _join_schemas(columns, checked)
        for index, one in enumerate(checked if zone.leaves_out else ()):
            try:
                checked[index] = one.counted(schema, zone.on_bad_rows)
            except UnreadableFile as error:
                bad_files[one.rows.uri] = _left_out(zone, one.rows, error)
        checked = [one for one in checked if one.rows.uri not in bad_files]
        if bad_files:
            schema = _join_schemas(columns, checked)
        for one in checked if zone.options.keys else ():
            _check_complete(one, schema)
        return CheckedFiles(checked, schema, bad_files)


class CheckedFile(msgspec.Struct, frozen=True):
    """A file that is loaded."""

    rows: FileRows
    columns: FileColumns
    bad_rows: int | None = None
    """Number of rows that are left out; None if it is not known that there are any."""

    def counted(self, schema: pa.Schema, on_bad_rows: OnBadRows) -> CheckedFile:
        """The file after all of its rows were read. Raises UnreadableFile, or InvalidArgument for a
        row if that is to fail.
        """
        if on_bad_rows == "fail":
            for _ in self.batches(schema):
                pass
            return self
        try:
            for _ in self.rows.read(self.columns, schema):
                pass
        except UnreadableFile:
            found = self.rows.split(self.columns, schema)
            bad_rows = sum(isinstance(part, BadRow) for part in found)
            return msgspec.structs.replace(self, bad_rows=bad_rows)
        return self

    def lacks(self, schema: pa.Schema) -> Sequence[str]:
        """Columns that the file does not have."""
        return [name for name in schema.names if name not in self.columns.schema.names]

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows that are loaded."""
        if self.bad_rows is not None:
            for part in self.rows.split(self.columns, schema):
                if isinstance(part, pa.RecordBatch):
                    yield part
            return
        try:
            yield from self.rows.read(self.columns, schema)
        except UnreadableFile as error:
            raise self.rows.located(self.columns, schema, error) from error


class CheckedFiles(msgspec.Struct, frozen=True):
    """What is loaded of some files."""

    files: Sequence[CheckedFile]
    """The files that can be read."""
    schema: pa.Schema
    """The columns to load."""
    bad_files: Mapping[str, str]
    """Why other files cannot be read, by their location."""

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows of all files, in the order of the files; a column that a file lacks is null. An
        error, also while the rows are read, names its file.
        """

        def batches() -> Iterator[pa.RecordBatch]:
            for file in self.files:
                yield from file.batches(self.schema)
                file.rows.check_unchanged()

        return pa.RecordBatchReader.from_batches(self.schema, batches())

    def bad_rows(self) -> Iterator[tuple[FileRows, BadRow]]:
        """The rows that are left out."""
        for file in self.files:
            if file.bad_rows:
                for part in file.rows.split(file.columns, self.schema):
                    if isinstance(part, BadRow):
                        yield file.rows, part
                file.rows.check_unchanged()

    @property
    def num_bad_rows(self) -> int:
        """Number of the rows that are left out."""
        return sum(file.bad_rows or 0 for file in self.files)

    @property
    def ignored_columns(self) -> dict[str, list[str]]:
        """Columns of files that are not loaded, and the files."""
        return _files_by_name((file, file.columns.ignored) for file in self.files)

    @property
    def null_columns(self) -> dict[str, list[str]]:
        """Columns that are null in all rows of a file, which lacks them, and these files."""
        return _files_by_name((file, file.lacks(self.schema)) for file in self.files)


def _files_by_name(found: Iterable[tuple[CheckedFile, Sequence[str]]]) -> dict[str, list[str]]:
    files: dict[str, list[str]] = {}
    for file, names in found:
        for name in names:
            files.setdefault(name, []).append(file.rows.uri)
    return files


def _left_out(zone: LandingZone, rows: FileRows, error: UnreadableFile) -> str:
    """Why a file is left out, if it may be."""
    rows.check_unchanged()
    if zone.on_bad_files == "fail":
        raise error
    return str(error.__cause__ or error)


def _join_schemas(columns: pa.Schema | None, files: Sequence[CheckedFile]) -> pa.Schema:
    """The columns to load of all files."""
    found = {file.rows.uri: file.columns.schema for file in files}
    advice = "name the columns and their types in `columns`"
    if columns is None:
        return joined_schema(found, advice=advice)
    known = list(columns)
    for schema in found.values():
        known = [with_new_fields(column, schema) for column in known]
    new = {
        uri: pa.schema([column for column in schema if column.name not in columns.names])
        for uri, schema in found.items()
    }
    return pa.schema([*known, *joined_schema(new, advice=advice)])


def _check_complete(file: CheckedFile, schema: pa.Schema) -> None:
    """Refuse a file of a merge without a column that was asked for, or that others have."""
    if absent := file.lacks(schema):
        raise InvalidArgument(
            f"{file.rows.uri} has no column {absent[0]}, and a merge would set those of its keys "
            "to null: give it in the file, or leave it out of `columns`; no file of this run was "
            "loaded"
        )


def _check_directory(store: ObjectStore, *, is_file: bool) -> None:
    """Refuse a location that is misspelled: no file would ever match."""
    place = store.local_path("")
    # A file that is named may still arrive.
    directory = None if place is None else Path(place).parent if is_file else Path(place)
    if directory is not None and not directory.is_dir():
        raise InvalidArgument(
            f"there is no directory {directory}: correct the source, or create it"
        )


def _check_no_table(listed: Sequence[ObjectMeta], found: Sequence[ObjectMeta], source: str) -> None:
    """Refuse data files of a Delta table, of which a file alone does not say which rows live."""
    logs = (file.path for file in listed if "/_delta_log/" in f"/{file.path}")
    roots = {path.partition("_delta_log/")[0] for path in logs}
    for file in found:
        if any(file.path.startswith(root) for root in roots):
            raise InvalidArgument(
                f"the source {source} matches {file.path}, a file of a Delta table: read the table "
                "as an asset, or name a directory without tables"
            )


def _make_matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a path matches: `*` and `?` stay in a directory, and `**` is any directories."""
    parts = [
        re.escape(part).replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
        for part in pattern.split("/")
    ]
    regex = "/".join(parts).replace("[^/]*[^/]*/", "(.*/)?").replace("[^/]*[^/]*", ".*")
    compiled = re.compile(regex)

    def matches(path: str) -> bool:
        hidden = any(part.startswith(("_", ".")) for part in path.split("/"))
        return not hidden and compiled.fullmatch(path) is not None

    return matches
