"""The rows of one file of a landing zone, and those of them that cannot be read.

A reader of Arrow stops at the first row that it cannot read. Then the rows are read as texts, or in
the types of the file, and converted in halves down to a single row.
"""

from __future__ import annotations

import codecs
import csv as text_csv
import io
import json as text_json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Literal, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv, json

import dagster_delta.arrow_compute as pc
from dagster_delta.errors import InvalidArgument, SchemaMismatch
from dagster_delta.nearest_name import misspelled_name
from dagster_delta.nested_arrays import inner_fields, with_inner_fields, without_views
from dagster_delta.storage import ObjectMeta, ObjectStore
from dagster_delta.table.log.reader import is_same_time

FileFormat = Literal["parquet", "csv", "json"]
"""json has one object per line."""

NewColumns = Literal["evolve", "ignore", "fail"]
"""What happens to a column of a file that is none of the columns to load."""

_SUFFIXES: Mapping[str, FileFormat] = {
    "parquet": "parquet",
    "csv": "csv",
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
}
_CODECS = {"gz": "gzip", "bz2": "bz2", "zst": "zstd"}
_EXACT_IN_DOUBLE = 2**53
_JSON_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
# Types of columns are taken from the first block, and a line must fit into one.
_BLOCK_BYTES = 8 << 20
# Blank lines, which a CSV reader skips, unless a quote was never closed: they are in a value then.
_END_OF_CSV = b"\n\r\r\n\n\n\r\r\r\n\r\n\n\r\r\n\r\n\r\n\n\n\r\n\r\r\r\n\n\n\n\r\n"


class FileOptions(msgspec.Struct, frozen=True):
    """How files are read."""

    format: FileFormat | None = None
    """None: by the extension of each file."""
    columns: pa.Schema | None = None
    """The columns to load; None for all columns of the files."""
    delimiter: str = ","
    """Of CSV files, which begin with the names of the columns."""
    keys: Sequence[str] = ()
    """Columns that every file has."""
    encoding: str = "utf-8"
    """Of the text in CSV and JSON files, by its name in Python."""


_Part: TypeAlias = tuple[pa.RecordBatch, Sequence[int]]
"""Rows as they are in a file, and their numbers."""


class UnreadableFile(InvalidArgument):
    """A file, or a part of it, cannot be read."""


class BadRow(msgspec.Struct, frozen=True):
    """A row that cannot be loaded."""

    number: int
    """Its position in the file, from 1: of CSV with the header as 1, of JSON its line."""
    text: str
    reason: str


class FileColumns(msgspec.Struct, frozen=True):
    """The columns of a file that are loaded."""

    schema: pa.Schema
    """With names as the table spells them."""
    own_names: Sequence[str]
    """Their names in the file."""
    all_names: Sequence[str]
    """Names of all columns of the file."""
    inferred: Sequence[str]
    """Those whose type nothing but the values of the file says."""
    ignored: Sequence[str] = ()
    """Columns of the file, and fields inside of others, that are not loaded."""
    has_bad_rows: bool = False
    """Whether some row is known to be bad: a row of the first block of CSV without the right number
    of values, or a line of JSON that is null, for which PyArrow 26 ends the process where it is the
    first one."""

    @property
    def own_schema(self) -> pa.Schema:
        """The columns with their names in the file."""
        fields = zip(self.schema, self.own_names, strict=True)
        return pa.schema([field.with_name(name) for field, name in fields])

    def renamed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of the file with these columns."""
        return rows.select(list(self.own_names)).rename_columns(self.schema.names)


class FileRows(msgspec.Struct, frozen=True):
    """One file, and how it is read."""

    options: FileOptions
    store: ObjectStore
    file: ObjectMeta
    uri: str

    def find_columns(self, types: pa.Schema, new_columns: NewColumns) -> FileColumns:
        """Which columns are loaded.

        Args:
            types: the columns that are known.
            new_columns: what happens to others.

        Raises:
            SchemaMismatch: the file has another one, and `new_columns` is `fail`.
            UnreadableFile: it cannot be read, or lacks what is to be loaded.
        """
        with self._named_errors() as kind:
            known = {name.lower(): name for name in types.names}
            names, found, has_bad_rows = self._inspect_columns(kind, known, types)
            if names:
                self._check_columns(names, kind)
        new = [name for name in names if name.lower() not in known]
        named = [column.with_name(known.get(column.name.lower(), column.name)) for column in found]
        for column in named:
            if column.name in types.names:
                new += _new_fields(types.field(column.name).type, column.type, column.name)
        if new and new_columns == "fail":
            raise SchemaMismatch(
                f"{self.uri} has a column {new[0]}, and the columns to load have none of this "
                "name: name it in `columns`, or set new_columns to 'evolve', which adds such "
                "columns to the table, or to 'ignore', which leaves them out; no file of this run "
                "was loaded"
            )
        if new_columns != "evolve":
            # Fields inside of it that are new are left out as well.
            named = [
                types.field(column.name)
                if column.name in types.names and pa.types.is_nested(column.type)
                else column
                for column in named
            ]
        loaded = [
            (column, own)
            for column, own in zip(named, found.names, strict=True)
            if new_columns == "evolve" or column.name in types.names
        ]
        return FileColumns(
            pa.schema([column for column, _ in loaded]),
            [own for _, own in loaded],
            names,
            [column.name for column, _ in loaded if column.name not in types.names],
            () if new_columns == "evolve" else new,
            has_bad_rows,
        )

    def read(self, columns: FileColumns, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows in the columns of `schema`; a column that the file lacks is null. Raises
        UnreadableFile, also while they are read.
        """
        with self._named_errors() as kind, self.store.open_input(self.file.path) as raw:
            if columns.has_bad_rows:
                raise InvalidArgument("some rows are malformed")
            for batch in self._read_batches(self._decode_source(raw, kind), kind, columns):
                yield _align_columns(columns.renamed(batch), schema)

    def split(self, columns: FileColumns, schema: pa.Schema) -> Iterator[pa.RecordBatch | BadRow]:
        """The rows as of `read`, and the rows that cannot be loaded. Raises UnreadableFile if it is
        not a matter of rows.
        """
        with self._named_errors() as kind, self.store.open_input(self.file.path) as raw:
            source = self._decode_source(raw, kind)
            parts: Iterator[_Part | BadRow]
            if kind == "csv":
                parts = self._csv_texts(source, columns)
            elif kind == "json":
                parts = _json_lines(source)
            else:
                parts = _number_rows(self._read_batches(source, kind, columns))

            def convert(rows: pa.RecordBatch) -> pa.RecordBatch:
                converted = rows if kind == "parquet" else self._parse_rows(rows, kind, columns)
                return _align_columns(columns.renamed(converted), schema)

            for part in parts:
                if isinstance(part, BadRow):
                    yield part
                    continue
                for found in _bisect_rows(*part, convert):
                    if isinstance(found, pa.RecordBatch):
                        yield found
                    else:
                        number, row, error = found
                        yield BadRow(
                            number, *self._describe_row(kind, columns, convert, row, error)
                        )

    def located(
        self, columns: FileColumns, schema: pa.Schema, error: InvalidArgument | None = None
    ) -> InvalidArgument:
        """The error with the first row that cannot be loaded; the given one if there is none."""
        try:
            for part in self.split(columns, schema):
                if isinstance(part, BadRow):
                    cause = f"row {part.number}: {part.reason}"
                    return self._make_error(cause, self._find_format(), InvalidArgument)
        except UnreadableFile as unreadable:
            return unreadable
        return error or self._make_error("no row", self._find_format(), InvalidArgument)

    def check_unchanged(self) -> None:
        """Check that the rows are those of the file that was listed, and not of a later one."""
        now = self.store.head(self.file.path)
        if (
            now is None
            or now.size_bytes != self.file.size_bytes
            or not is_same_time(self.file.modified_ms, now.modified_ms)
        ):
            raise InvalidArgument(
                f"{self.uri} was changed while it was loaded: run the asset again"
            )

    @contextmanager
    def _named_errors(self) -> Iterator[FileFormat]:
        kind = self._find_format()
        try:
            yield kind
        except (pa.ArrowException, OSError, ValueError) as error:
            cause = re.sub(r"CSV column #(\d+)", _counted_column, str(error))
            raise self._make_error(cause, kind, UnreadableFile) from error

    def _make_error(
        self, cause: str, kind: FileFormat, error: type[InvalidArgument]
    ) -> InvalidArgument:
        spelling, texts = "`encoding`", "where a column has one kind of value in all lines"
        if kind == "csv":
            spelling, texts = "`encoding` or `delimiter`", "where STRING takes any text"
        return error(
            f"{self.uri} cannot be loaded as {kind} ({cause}): correct the file, move "
            f"it away, name its {spelling}, or give its columns and their types in `columns`, "
            f"which otherwise follow from its first {_BLOCK_BYTES >> 20} MiB, and {texts}; or set "
            "on_bad_rows or on_bad_files; no file of this run was loaded"
        )

    def _find_format(self) -> FileFormat:
        if self.options.format is not None:
            return self.options.format
        suffixes = self.file.path.lower().rsplit("/", 1)[-1].split(".")[1:]
        if suffixes[-1:] and suffixes[-1] in _CODECS:
            suffixes.pop()
        # An unfinished upload, such as a.csv.tmp, is not a.csv.
        if suffixes and suffixes[-1] in _SUFFIXES:
            return _SUFFIXES[suffixes[-1]]
        raise InvalidArgument(
            f"the format of {self.uri} does not follow from its name: give `format`, or a "
            "pattern such as *.csv that leaves out such files"
        )

    def _decode_source(self, raw: pa.NativeFile, kind: FileFormat) -> pa.NativeFile:
        """The bytes of Parquet, or the text of other files in UTF-8."""
        codec = _CODECS.get(self.file.path.lower().rpartition(".")[2])
        source = raw if codec is None else pa.CompressedInputStream(raw, codec)
        if kind == "parquet":
            return source
        text = _transcode_to_utf8(source, self.options.encoding)
        return _checked_csv(text, self.options.delimiter) if kind == "csv" else text

    def _check_columns(self, names: Sequence[str], kind: FileFormat) -> None:
        """Refuse a file without what is to be loaded: its rows would be nulls."""
        folded = [name.lower() for name in names]
        if twice := [name for name in names if folded.count(name.lower()) > 1]:
            raise InvalidArgument(f"it has several columns {twice[0]!r}")
        there = set(folded)
        wanted = [] if self.options.columns is None else self.options.columns.names
        lacking = [key for key in self.options.keys if key.lower() not in there]
        if lacking or (wanted and there.isdisjoint(name.lower() for name in wanted)):
            raise InvalidArgument(
                f"it has the columns {', '.join(names)[:200]}, and not {(lacking or wanted)[0]}: "
                "is there a header line, and is `delimiter` the right one?"
            )
        absent = [name for name in wanted if name.lower() not in there]
        others = there - {name.lower() for name in wanted}
        for name in absent:
            if near := misspelled_name(name, others):
                raise InvalidArgument(
                    f"it has a column {near}, and none {name}: if these are two columns, name "
                    "both in `columns`"
                )
        if kind == "csv" and len(names) == 1 and re.search(r"[,;|\t]", names[0]):
            raise InvalidArgument(
                f"it has a single column, {names[0][:200]!r}: set `delimiter`, which is "
                f"{self.options.delimiter!r}"
            )

    def _inspect_columns(
        self, kind: FileFormat, known: Mapping[str, str], types: pa.Schema
    ) -> tuple[Sequence[str], pa.Schema, bool]:
        """Names of the columns in the file, those of them that have a type, and whether some row is
        known to be bad.
        """
        with self.store.open_input(self.file.path) as raw:
            source = self._decode_source(raw, kind)
            if kind == "parquet":
                none = pa.RecordBatch.from_pylist([], schema=pq.read_schema(source))
                return none.schema.names, without_views(none).schema, False
            if kind == "csv":
                # A malformed row has no say, nor have values that do not fit a type.
                malformed: list[csv.InvalidRow] = []
                options = self._csv_options(malformed)
                rows = csv.open_csv(source, *options, _csv_conversion({}, ()))
                found = self._csv_schema(rows.schema, known, types)
                return rows.schema.names, found, bool(malformed)
            names, has_null_line = _json_keys(source)
        given = [
            types.field(known[name.lower()]).with_name(name)
            for name in names
            if name.lower() in known
        ]
        found = self._json_schema(names, pa.schema(given), has_null_line=has_null_line)
        return names, found, has_null_line

    def _csv_schema(
        self, inferred: pa.Schema, known: Mapping[str, str], types: pa.Schema
    ) -> pa.Schema:
        """The inferred columns, with their known types as far as CSV has them."""
        ours = {name: known.get(name.lower(), name) for name in inferred.names}
        given = _csv_types(types)
        return pa.schema(
            [column.with_type(given.get(ours[column.name], column.type)) for column in inferred]
        )

    def _csv_options(
        self, malformed: list[csv.InvalidRow] | None = None
    ) -> tuple[csv.ReadOptions, csv.ParseOptions]:
        """Options of a reader that collects malformed rows; None: they are errors."""

        def skip(row: csv.InvalidRow) -> str:
            assert malformed is not None  # noqa: S101  it is the handler of such a list
            malformed.append(row)
            return "skip"

        # Rows have numbers in one thread alone.
        read = csv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=malformed is None)
        return read, csv.ParseOptions(
            delimiter=self.options.delimiter,
            newlines_in_values=True,
            invalid_row_handler=None if malformed is None else skip,
        )

    def _json_schema(
        self, names: Sequence[str], given: pa.Schema, *, has_null_line: bool
    ) -> pa.Schema:
        """The columns that have a type: the given one, with fields that are new inside of it, or
        that of the values in the first block.
        """
        try:
            if has_null_line:
                raise InvalidArgument("a line is null, and no object")
            with self.store.open_input(self.file.path) as raw:
                found = _json_reader(self._decode_source(raw, "json"), given).schema
        except (pa.ArrowException, ValueError):
            # Some row does not fit: the types of the others count.
            with self.store.open_input(self.file.path) as raw:
                new = [name for name in names if name not in given.names]
                found = pa.schema([*given, *_inferred_json(self._decode_source(raw, "json"), new)])
        typed = [_with_known_types(column, given) for column in found]
        # Arrow mixes times with and without an offset; as text, they are told apart.
        return pa.schema(
            [
                column.with_type(pa.timestamp("us"))
                if column.type == pa.timestamp("s") and column.name not in given.names
                else column
                for column in typed
                if column.name in names
            ]
        )

    def _read_batches(
        self, source: pa.NativeFile, kind: FileFormat, columns: FileColumns
    ) -> Iterator[pa.RecordBatch]:
        """The rows with the names and types of the file's own columns, until one does not fit."""
        own = columns.own_schema
        if kind == "parquet":
            yield from map(without_views, pq.ParquetFile(source).iter_batches())
        elif kind == "csv":
            options = _csv_conversion(_csv_types(own), own.names)
            rows = csv.open_csv(source, *self._csv_options(), options)
            for batch in rows:
                yield _refuse_inexact(_with_closed_quotes(batch), columns)
        else:
            for batch in _json_reader(source, own, ignores=bool(columns.ignored)):
                yield _refuse_inexact(_align_columns(batch, own), columns)

    def _csv_texts(self, source: pa.NativeFile, columns: FileColumns) -> Iterator[_Part | BadRow]:
        """The rows of a CSV file as texts with their numbers, and those with too many or too few
        values.
        """
        malformed: list[csv.InvalidRow] = []
        texts = _csv_conversion(dict.fromkeys(columns.all_names, pa.string()), ())
        read, known = 1, np.array([], np.int64)
        for batch in csv.open_csv(source, *self._csv_options(malformed), texts):
            _with_closed_quotes(batch)
            yield from _describe_malformed(malformed)
            known = np.append(known, [row.number for row in malformed])
            malformed.clear()
            # Those of the next rows, without the malformed ones.
            numbers = np.setdiff1d(
                np.arange(read + 1, read + batch.num_rows + len(known) + 1), known
            )
            if batch.num_rows:
                numbers = numbers[: batch.num_rows]
                read = int(numbers[-1])
                yield batch, numbers.tolist()
        yield from _describe_malformed(malformed)

    def _parse_rows(
        self, rows: pa.RecordBatch, kind: FileFormat, columns: FileColumns
    ) -> pa.RecordBatch:
        """Rows of texts, or lines of JSON, in the types of the file's own columns."""
        own = columns.own_schema
        if kind == "csv":
            text = _csv_text(rows.select(own.names), self.options.delimiter)
            read = csv.ReadOptions(
                column_names=own.names, use_threads=False, block_size=text.size + 1
            )
            parse = csv.ParseOptions(
                delimiter=self.options.delimiter, newlines_in_values=True, ignore_empty_lines=False
            )
            conversion = _csv_conversion(_csv_types(own), own.names)
            return _refuse_inexact(
                _one_batch(csv.read_csv(pa.BufferReader(text), read, parse, conversion)), columns
            )
        lines = rows["line"].to_pylist()
        if any(line.strip() == b"null" for line in lines):
            raise InvalidArgument("a line is null, and no object")
        text = b"\n".join(lines)
        found = json.read_json(
            pa.BufferReader(text),
            json.ReadOptions(use_threads=False, block_size=len(text) + 1),
            _json_options(own, ignores=bool(columns.ignored)),
        )
        new = [name for name in found.schema.names if name not in own.names]
        for column in own:
            new += _new_fields(column.type, found.schema.field(column.name).type, column.name)
        if new:
            raise InvalidArgument(f"unexpected field {new[0]}")
        return _refuse_inexact(_align_columns(_one_batch(found), own), columns)

    def _describe_row(
        self,
        kind: FileFormat,
        columns: FileColumns,
        convert: Callable[[pa.RecordBatch], pa.RecordBatch],
        row: pa.RecordBatch,
        error: Exception,
    ) -> tuple[str, str]:
        """The text of a row, and why it cannot be loaded, with the column."""
        reason = re.sub(r" in row 0$", "", str(error))
        if kind == "csv":
            named = re.match(r"In CSV column #(\d+): (?:Row #\d+: )?", reason)
            if named is not None:
                reason = f"column {columns.own_names[int(named[1])]}: {reason[named.end() :]}"
            text = io.StringIO()
            values = row.to_pylist()[0].values()
            text_csv.writer(text, delimiter=self.options.delimiter).writerow(values)
            return text.getvalue().removesuffix("\r\n"), reason
        if kind == "parquet":
            return text_json.dumps(row.to_pylist()[0], default=str, ensure_ascii=False), reason
        line = row["line"][0].as_py()
        if "olumn" not in reason:
            with suppress(msgspec.DecodeError):
                for key, value in _JSON_OBJECT.decode(line).items():
                    alone = msgspec.json.encode({key: value})
                    try:
                        convert(pa.RecordBatch.from_pydict({"line": [alone]}))
                    except (pa.ArrowException, ValueError):
                        reason = f"column {key}: {reason}"
                        break
        return line.decode(errors="replace").strip(), reason


def _counted_column(number: re.Match[str]) -> str:
    return f"column {int(number[1]) + 1} from the left"


def _new_fields(known: pa.DataType, found: pa.DataType, path: str) -> Iterator[str]:
    """Fields with values that only the second one of two types of a column has."""
    if pa.types.is_struct(known) and pa.types.is_struct(found):
        for inner in found:
            if (index := known.get_field_index(inner.name)) >= 0:
                yield from _new_fields(known.field(index).type, inner.type, f"{path}.{inner.name}")
            elif inner.type != pa.null():
                yield f"{path}.{inner.name}"
    elif pa.types.is_list(known) and pa.types.is_list(found):
        yield from _new_fields(known.value_type, found.value_type, f"{path}.element")
    elif pa.types.is_map(known) and pa.types.is_map(found):
        yield from _new_fields(known.item_type, found.item_type, f"{path}.value")


def _bisect_rows(
    rows: pa.RecordBatch,
    numbers: Sequence[int],
    convert: Callable[[pa.RecordBatch], pa.RecordBatch],
) -> Iterator[pa.RecordBatch | tuple[int, pa.RecordBatch, Exception]]:
    """The converted rows; and of each row whose conversion fails the number, itself and why."""
    try:
        converted = convert(rows)
    except (pa.ArrowException, ValueError) as error:
        if rows.num_rows == 1:
            yield numbers[0], rows, error
            return
    else:
        yield converted
        return
    half = rows.num_rows // 2
    yield from _bisect_rows(rows.slice(0, half), numbers[:half], convert)
    yield from _bisect_rows(rows.slice(half), numbers[half:], convert)


def _number_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[_Part]:
    number = 1
    for batch in batches:
        yield batch, range(number, number + batch.num_rows)
        number += batch.num_rows


def _describe_malformed(rows: Iterable[csv.InvalidRow]) -> Iterator[BadRow]:
    for row in rows:
        _check_closed(row.text)
        reason = f"it has {row.actual_columns} values, and the header {row.expected_columns}"
        yield BadRow(row.number, row.text, reason)


def _csv_text(rows: pa.RecordBatch, delimiter: str) -> pa.Buffer:
    """Rows of texts as CSV without a header: a null without quotes, any text with them."""
    sink = pa.BufferOutputStream()
    quoted = csv.WriteOptions(include_header=False, delimiter=delimiter, quoting_style="all_valid")
    csv.write_csv(rows, sink, quoted)
    return sink.getvalue()


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _json_lines(source: pa.NativeFile) -> Iterator[_Part]:
    """The lines that are not blank, as the column `line`."""
    rest, data, number = b"", b"\n", 1
    while data:
        data = source.read(_BLOCK_BYTES)
        lines = (rest + data).split(b"\n")
        # The last one goes on in the next block.
        rest = lines.pop() if data else b""
        found = [(n, line) for n, line in enumerate(lines, number) if line.strip()]
        number += len(lines)
        if found:
            numbers, texts = zip(*found, strict=True)
            yield pa.RecordBatch.from_pydict({"line": list(texts)}), numbers


def _json_keys(source: pa.NativeFile) -> tuple[list[str], bool]:
    """The keys of all lines that are JSON, and whether a line is null."""
    keys: dict[str, None] = {}
    has_null_line = False
    for lines, _ in _json_lines(source):
        for line in lines["line"].to_pylist():
            has_null_line |= line.strip() == b"null"
            with suppress(msgspec.DecodeError):
                keys.update(dict.fromkeys(_JSON_OBJECT.decode(line)))
    return list(keys), has_null_line


def _inferred_json(source: pa.NativeFile, names: Collection[str]) -> pa.Schema:
    """The types of some columns by the lines in the first block that are JSON."""
    objects = []
    for lines, _ in islice(_json_lines(source), 1):
        for line in lines["line"].to_pylist():
            with suppress(msgspec.DecodeError):
                found = _JSON_OBJECT.decode(line)
                objects.append({name: found[name] for name in names if name in found})
    if not any(objects):
        return pa.schema([])
    text = b"\n".join(map(msgspec.json.encode, objects))
    return json.read_json(pa.BufferReader(text), json.ReadOptions(block_size=len(text) + 1)).schema


def _json_reader(
    source: pa.NativeFile, types: pa.Schema, *, ignores: bool = False
) -> json.JSONStreamingReader:
    return json.open_json(
        source, json.ReadOptions(block_size=_BLOCK_BYTES), _json_options(types, ignores=ignores)
    )


def _json_options(types: pa.Schema, *, ignores: bool) -> json.ParseOptions:
    return json.ParseOptions(
        explicit_schema=pa.schema([(column.name, _as_text(column.type)) for column in types]),
        newlines_in_values=False,
        unexpected_field_behavior="ignore" if ignores else "infer",
    )


def _refuse_inexact(batch: pa.RecordBatch, columns: FileColumns) -> pa.RecordBatch:
    """The rows; refuses whole numbers of which a type that was inferred holds only some digits."""
    own = dict(zip(columns.schema.names, columns.own_names, strict=True))
    for name in columns.inferred:
        for values in _find_doubles(batch[own[name]]):
            largest = pc.max(pc.abs(values.filter(pc.is_finite(values)))).as_py()
            if largest is not None and largest >= _EXACT_IN_DOUBLE:
                raise InvalidArgument(
                    f"column {name} has the number {largest:g}, and a DOUBLE may have lost "
                    "digits of it: name the type in `columns`, with DECIMAL(38, 0), STRING or "
                    "DOUBLE"
                )
    return batch


def _find_doubles(values: pa.Array) -> Iterator[pa.Array]:
    if pa.types.is_float64(values.type):
        yield values
    elif pa.types.is_struct(values.type):
        for field in values.flatten():
            yield from _find_doubles(field)
    elif pa.types.is_list(values.type):
        yield from _find_doubles(values.flatten())


def _csv_types(types: pa.Schema) -> dict[str, pa.DataType]:
    # A nested column has no text form, and a time with a zone may be written without it.
    return {
        column.name: column.type
        for column in types
        if not pa.types.is_nested(column.type)
        and not (pa.types.is_timestamp(column.type) and column.type.tz)
    }


def _csv_conversion(types: Mapping[str, pa.DataType], names: Sequence[str]) -> csv.ConvertOptions:
    # By default `NA` would be null, which is a country.
    return csv.ConvertOptions(
        column_types=types,
        include_columns=list(names),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )


def _with_known_types(field: pa.Field, known: pa.Schema | pa.StructType) -> pa.Field:
    """A field of a file with the known type. Fields inside of it that are new stay in it."""
    index = known.get_field_index(field.name)
    if index < 0:
        return field
    return field.with_type(_extend_type(known.field(index).type, field.type))


def with_new_fields(column: pa.Field, found: pa.Schema) -> pa.Field:
    """A known column, with the fields inside of it that only the found one has."""
    if column.name not in found.names or not pa.types.is_nested(column.type):
        return column
    return column.with_type(_extend_type(column.type, found.field(column.name).type))


def _extend_type(known: pa.DataType, found: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(known) and pa.types.is_struct(found):
        typed = {field.name: _with_known_types(field, known) for field in found}
        # What is new and has no value anywhere has no type either.
        new = [field for name, field in typed.items() if name not in known.names]
        new = [field for field in new if field.type != pa.null()]
        return pa.struct([*(typed.get(field.name, field) for field in known), *new])
    if pa.types.is_list(known) and pa.types.is_list(found):
        return pa.list_(_extend_type(known.value_type, found.value_type))
    if pa.types.is_map(known) and pa.types.is_map(found):
        return pa.map_(known.key_type, _extend_type(known.item_type, found.item_type))
    return known


def _as_text(data_type: pa.DataType) -> pa.DataType:
    """The type in which a column of JSON is read: Arrow drops the offsets of times without zone."""
    if pa.types.is_timestamp(data_type) and data_type.tz is None:
        return pa.string()
    return _with_dates_as_text(data_type)


def _with_dates_as_text(data_type: pa.DataType) -> pa.DataType:
    """The type, with text for dates: Arrow reads dates from JSON as numbers only."""
    if pa.types.is_date(data_type):
        return pa.string()
    if not pa.types.is_nested(data_type):
        return data_type
    inner = [f.with_type(_with_dates_as_text(f.type)) for f in inner_fields(data_type)]
    return with_inner_fields(data_type, inner)


def _transcode_to_utf8(source: pa.NativeFile, encoding: str) -> pa.NativeFile:
    """The text as UTF-8. Of other bytes, Arrow makes BINARY in CSV and broken text in JSON."""
    # Arrow checks nothing where both encodings are the same; this one is UTF-8 too.
    known = "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding
    return pa.transcoding_input_stream(source, known, "utf-8")


def _checked_csv(source: pa.NativeFile, delimiter: str) -> pa.NativeFile:
    """The bytes of `source`, and the end by which an open quote is known. Refuses a backslash
    before a quote within a value, as Spark and MySQL write it: for Arrow the value ends there.
    """
    rest, last_line, mark = [_END_OF_CSV], [b""], re.escape(delimiter.encode())
    # Of a line up to such a quote: whole values, and the beginning of one.
    broken = re.compile(
        rb'(?:(?:"(?:[^"]++|"")*+"|[^"%b\r\n][^%b\r\n]*+|)%b)*+"(?:[^"\\]++|""|\\(?:""|[^"]))*+\\"'
        % (mark, mark, mark)
    )
    inner_quote = re.compile(rb'\\"[^"\r\n%b][^\r\n]*+' % mark)

    def ended(data: pa.Buffer) -> pa.Buffer | bytes:
        text, place = last_line[0] + data.to_pybytes(), 0
        while found := inner_quote.search(text, place):
            start = _line_start(text, place, found.start())
            line = broken.match(text, start)
            if line is not None and inner_quote.match(text, line.end() - 2):
                value = text[max(start, line.end() - 60) : line.end()].decode(errors="replace")
                raise InvalidArgument(
                    f"a backslash stands before a quote, in {value}: such a quote has to be "
                    "written twice, in Spark by the option escape='\"'"
                )
            place = found.end()
        last_line[0] = text[_line_start(text, 0, len(text)) :]
        # At the end, Arrow asks again until nothing comes.
        return rest.pop() if rest and not data.size else data

    return pa.TransformInputStream(source, ended)


def _line_start(text: bytes, after: int, place: int) -> int:
    return max(text.rfind(b"\n", after, place), text.rfind(b"\r", after, place), after - 1) + 1


def _with_closed_quotes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch, if no quote is open at the end of the file: Arrow makes one value of all lines
    after such a quote.
    """
    texts = [column[-1].as_py() for column in batch if len(column) and column.type == pa.string()]
    for text in filter(None, texts):
        _check_closed(text)
    return batch


def _check_closed(text: str) -> None:
    # Of a malformed row, Arrow leaves out the end of the line.
    if _END_OF_CSV.decode()[:-2] in text:
        first = text.splitlines()[0][:80]
        raise InvalidArgument(f"a quote is never closed, that of the value {first!r}")


def _align_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    names = batch.schema.names
    for given in batch.schema:
        wanted = schema.field(given.name).type if given.name in schema.names else given.type
        if pa.types.is_integer(given.type) and pa.types.is_timestamp(wanted):
            # Their unit is not known: Arrow would read seconds since 1970 as microseconds.
            raise InvalidArgument(f"column {given.name} has numbers, and {wanted} needs times")
    columns = []
    for column in schema:
        if column.name not in names:
            columns.append(pa.nulls(batch.num_rows, column.type))
            continue
        try:
            columns.append(_cast_values(batch.column(column.name), column.type))
        except (pa.ArrowException, ValueError) as error:
            raise InvalidArgument(f"column {column.name}: {error}") from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast_values(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """The values in a type; times with an offset, if all have one, become those of UTC."""
    try:
        return values.cast(wanted)
    except pa.ArrowInvalid:
        if not (pa.types.is_string(values.type) and pa.types.is_timestamp(wanted)):
            raise
        return values.cast(pa.timestamp("us", "UTC")).cast(wanted)
