"""Files in a landing zone: which match a location, and their rows."""

from __future__ import annotations

import codecs
import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv, json

from dagster_delta import clock
from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.io.asset_writer import joined_schema
from dagster_delta.orchestration.metadata_keys import counted
from dagster_delta.parquet.nested_arrays import inner_fields, with_inner_fields, without_views
from dagster_delta.storage import ObjectMeta, ObjectStore, open_store
from dagster_delta.storage.locations import canonical_uri
from dagster_delta.table.log.reader import is_same_time

FileFormat = Literal["parquet", "csv", "json"]
"""json has one object per line."""

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


@dataclass(frozen=True, slots=True)
class LandingZone:
    """Where files arrive, and how they are read."""

    source: str
    """A file, a directory, or a pattern: `s3://landing/flights/*.csv`, `/in/**/*.json`."""
    storage_options: Mapping[str, object] = field(default_factory=dict, repr=False)
    format: FileFormat | None = None
    """None: by the extension of each file."""
    columns: pa.Schema | None = None
    """The columns to load; None for all columns of the files."""
    delimiter: str = ","
    """Of CSV files, which begin with the names of the columns."""
    minimum_age_seconds: float = 0
    """Younger files may still be written, and are left for the next run."""
    keys: Sequence[str] = ()
    """Columns that every file has."""
    encoding: str = "utf-8"
    """Of the text in CSV and JSON files, by its name in Python."""

    def files(self) -> LandingFiles:
        """The matching files, the oldest first. Names that begin with `_` or `.` do not match.

        Files without bytes are left out: somebody may be about to write them.
        """
        parts = self.source.rstrip("/").split("/")
        first = next((i for i, part in enumerate(parts) if set(part) & set("*?")), len(parts))
        matches = _matcher("/".join(parts[first:]) or "**")
        # The last part of `s3://bucket` is not a file.
        may_be_file = first == len(parts) and (parts[-2:-1] != [""] or len(parts) == 2)
        store = self._open(parts[:-1] if may_be_file else parts[:first])
        if may_be_file and (file := store.head(parts[-1])) is not None:
            found = [file]
        else:
            store = self._open(parts[:first])
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

    def _open(self, parts: Sequence[str]) -> ObjectStore:
        root = "/".join(parts) or ("/" if parts else ".")
        return open_store(root, self.storage_options)


@dataclass(frozen=True, slots=True)
class LandingFiles:
    """Some files of a landing zone."""

    zone: LandingZone
    store: ObjectStore = field(repr=False)
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

    def to_reader(self, known: pa.Schema) -> pa.RecordBatchReader:
        """The rows of all files, in the order of the files; a column that a file lacks is null.
        `known` has the types of columns, for formats that have none of their own. An error, also
        while the rows are read, names its file.
        """
        types = known if self.zone.columns is None else self.zone.columns
        schema = self.zone.columns or self._unified(types)

        def batches() -> Iterator[pa.RecordBatch]:
            for file in self.files:
                with self._opened(file, types) as (given, rows):
                    self._check_complete(given, schema)
                    for batch in rows:
                        yield _aligned(batch, schema)
                    self._check_unchanged(file)

        return pa.RecordBatchReader.from_batches(schema, batches())

    def _check_unchanged(self, file: ObjectMeta) -> None:
        """Check that the rows are those of the file that was listed, and not of a later one."""
        now = self.store.head(file.path)
        if (
            now is None
            or now.size_bytes != file.size_bytes
            or not is_same_time(file.modified_ms, now.modified_ms)
        ):
            raise InvalidArgument("it was changed while it was loaded")

    def _check_complete(self, given: pa.Schema, schema: pa.Schema) -> None:
        """Refuse a file of a merge without a column that was asked for, or that others have."""
        absent = [name for name in schema.names if name not in given.names]
        if absent and self.zone.keys:
            raise InvalidArgument(
                f"it has no column {absent[0]}, and a merge would set those of its keys to null: "
                f"give it in the file, in the first {_BLOCK_BYTES >> 20} MiB of JSON, or leave it "
                "out of `columns`"
            )

    def _unified(self, types: pa.Schema) -> pa.Schema:
        schemas = {}
        for file in self.files:
            with self._opened(file, types) as (schema, _):
                schemas[self.uri(file)] = schema
        return joined_schema(schemas, advice="name the columns and their types in `columns`")

    @contextmanager
    def _opened(
        self, file: ObjectMeta, types: pa.Schema
    ) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
        """Columns and rows of a file, with names as `types` spells them: case does not count."""
        kind = self.zone.format or self._format(file)
        ours = {name.lower(): name for name in types.names}
        try:
            with self.store.open_input(file.path) as raw:
                source = _decompressed(raw, file.path)
                if kind == "json":
                    # Read with types, it seems to have all their columns.
                    found = _first_keys(_utf8(source, self.zone.encoding))
                else:
                    schema, rows = self._read(source, kind, types)
                    found = schema.names
                if found:
                    self._check_columns(found, kind)
                names = [ours.get(name.lower(), name) for name in found]
                if kind != "json" and names == found:
                    yield schema, rows
                    return
            theirs = dict(zip(names, found, strict=True))
            if self.zone.keys:
                # A merge leaves a column that no file has as it is.
                types = pa.schema([field for field in types if field.name in theirs])
            given = [field.with_name(theirs.get(field.name, field.name)) for field in types]
            # Read again, because the types of columns are found by the names in the file; and once
            # more with times of JSON as text, since Arrow mixes those with and without an offset.
            with ExitStack() as opened:
                for _ in range(2):
                    raw = opened.enter_context(self.store.open_input(file.path))
                    schema, rows = self._read(_decompressed(raw, file.path), kind, pa.schema(given))
                    named = {field.name for field in given}
                    times = [field for field in schema if field.type == pa.timestamp("s")]
                    new = [field for field in times if field.name not in named]
                    if kind != "json" or not new:
                        break
                    given += [field.with_type(pa.timestamp("us")) for field in new]
                names = [ours.get(name.lower(), name) for name in schema.names]
                fields = [field.with_name(name) for field, name in zip(schema, names, strict=True)]
                yield pa.schema(fields), (batch.rename_columns(names) for batch in rows)
        except (pa.ArrowException, OSError, ValueError) as error:
            spelling, texts = "`encoding`", "where a column has one kind of value in all lines"
            if kind == "csv":
                spelling, texts = "`encoding` or `delimiter`", "where STRING takes any text"
            cause = re.sub(r"CSV column #(\d+)", _counted_column, str(error))
            raise InvalidArgument(
                f"{self.uri(file)} cannot be loaded as {kind} ({cause}): mend the file, move it "
                f"away, name its {spelling}, or give its columns and their types in `columns`, "
                f"which otherwise follow from its first {_BLOCK_BYTES >> 20} MiB, and {texts}; "
                "no file of this run was loaded"
            ) from error

    def _check_columns(self, names: Sequence[str], kind: FileFormat) -> None:
        """Refuse a file without what is to be loaded: its rows would be nulls."""
        folded = [name.lower() for name in names]
        if twice := [name for name in names if folded.count(name.lower()) > 1]:
            raise InvalidArgument(f"it has several columns {twice[0]!r}")
        there = set(folded)
        wanted = [] if self.zone.columns is None else self.zone.columns.names
        lacking = [key for key in self.zone.keys if key.lower() not in there]
        if lacking or (wanted and there.isdisjoint(name.lower() for name in wanted)):
            raise InvalidArgument(
                f"it has the columns {', '.join(names)[:200]}, and not {(lacking or wanted)[0]}: "
                "is there a header line, and is `delimiter` the right one?"
            )
        absent = [name for name in wanted if name.lower() not in there]
        others = sorted(there - {name.lower() for name in wanted})
        for name in absent:
            if close := difflib.get_close_matches(name.lower(), others, n=1, cutoff=0.75):
                raise InvalidArgument(
                    f"it has a column {close[0]}, and none {name}: if these are two columns, name "
                    "both in `columns`"
                )
        if kind == "csv" and len(names) == 1 and re.search(r"[,;|\t]", names[0]):
            raise InvalidArgument(
                f"it has a single column, {names[0][:200]!r}: set `delimiter`, which is "
                f"{self.zone.delimiter!r}"
            )

    def _format(self, file: ObjectMeta) -> FileFormat:
        suffixes = file.path.lower().rsplit("/", 1)[-1].split(".")[1:]
        if suffixes[-1:] and suffixes[-1] in _CODECS:
            suffixes.pop()
        # An unfinished upload, such as a.csv.tmp, is not a.csv.
        if suffixes and suffixes[-1] in _SUFFIXES:
            return _SUFFIXES[suffixes[-1]]
        raise InvalidArgument(
            f"the format of {self.uri(file)} does not follow from its name: give `format`, or a "
            "pattern such as *.csv that leaves out such files"
        )

    def _read(
        self, source: pa.NativeFile, kind: FileFormat, types: pa.Schema
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        if kind == "parquet":
            file = pq.ParquetFile(source)
            none = pa.RecordBatch.from_pylist([], schema=file.schema_arrow)
            return without_views(none).schema, map(without_views, file.iter_batches())
        source = _utf8(source, self.zone.encoding)
        if kind == "csv":
            rows = csv.open_csv(
                _checked_csv(source, self.zone.delimiter),
                csv.ReadOptions(block_size=_BLOCK_BYTES),
                csv.ParseOptions(delimiter=self.zone.delimiter, newlines_in_values=True),
                _csv_types(types),
            )
            return rows.schema, _exact(map(_with_closed_quotes, rows), rows.schema, types)
        texts = pa.schema([(field.name, _as_text(field.type)) for field in types])
        lines = json.open_json(
            source,
            json.ReadOptions(block_size=_BLOCK_BYTES),
            json.ParseOptions(
                explicit_schema=texts,
                newlines_in_values=False,
                unexpected_field_behavior="ignore" if self.zone.columns is not None else "infer",
            ),
        )
        schema = pa.schema([_with_known_types(field, types) for field in lines.schema])
        return schema, _exact((_aligned(batch, schema) for batch in lines), schema, types)


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


def _matcher(pattern: str) -> Callable[[str], bool]:
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


def _counted_column(number: re.Match[str]) -> str:
    return f"column {int(number[1]) + 1} from the left"


def _first_keys(source: pa.NativeFile) -> list[str]:
    """The keys in the first block of a JSON file; none if it is no JSON, which Arrow explains."""
    keys: dict[str, None] = {}
    for line in source.read(_BLOCK_BYTES).splitlines():
        if line.strip() == b"null":
            # PyArrow 26 ends the process where it is the first line.
            raise InvalidArgument("a line is null, and no object")
        # The block may end within a line.
        with suppress(msgspec.DecodeError):
            keys.update(dict.fromkeys(_JSON_OBJECT.decode(line)))
    return list(keys)


def _exact(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, types: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows; refuses whole numbers of which a type that was inferred holds only some digits."""
    inferred = [name for name in schema.names if name not in types.names]
    for batch in batches:
        for name in inferred:
            for values in _doubles(batch[name]):
                largest = pc.max(pc.abs(values.filter(pc.is_finite(values)))).as_py()
                if largest is not None and largest >= _EXACT_IN_DOUBLE:
                    raise InvalidArgument(
                        f"column {name} has the number {largest:g}, and a DOUBLE may have lost "
                        "digits of it: name the type in `columns`, with DECIMAL(38, 0), STRING or "
                        "DOUBLE"
                    )
        yield batch


def _doubles(values: pa.Array) -> Iterator[pa.Array]:
    if pa.types.is_float64(values.type):
        yield values
    elif pa.types.is_struct(values.type):
        for field in values.flatten():
            yield from _doubles(field)
    elif pa.types.is_list(values.type):
        yield from _doubles(values.flatten())


def _csv_types(types: pa.Schema) -> csv.ConvertOptions:
    # A nested column has no text form, and a time with a zone may be written without it.
    named = {
        column.name: column.type
        for column in types
        if not pa.types.is_nested(column.type)
        and not (pa.types.is_timestamp(column.type) and column.type.tz)
    }
    # By default `NA` would be null, which is a country.
    return csv.ConvertOptions(
        column_types=named,
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )


def _with_known_types(field: pa.Field, known: pa.Schema | pa.StructType) -> pa.Field:
    """A field of a file with the known type. Fields inside of it that are new stay in it."""
    index = known.get_field_index(field.name)
    if index < 0:
        return field
    return field.with_type(_completed(known.field(index).type, field.type))


def _completed(known: pa.DataType, found: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(known) and pa.types.is_struct(found):
        typed = {field.name: _with_known_types(field, known) for field in found}
        # What is new and has no value anywhere has no type either.
        new = [field for name, field in typed.items() if name not in known.names]
        new = [field for field in new if field.type != pa.null()]
        return pa.struct([*(typed.get(field.name, field) for field in known), *new])
    if pa.types.is_list(known) and pa.types.is_list(found):
        return pa.list_(_completed(known.value_type, found.value_type))
    if pa.types.is_map(known) and pa.types.is_map(found):
        return pa.map_(known.key_type, _completed(known.item_type, found.item_type))
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


def _decompressed(raw: pa.NativeFile, path: str) -> pa.NativeFile:
    codec = _CODECS.get(path.lower().rpartition(".")[2])
    return raw if codec is None else pa.CompressedInputStream(raw, codec)


def _utf8(source: pa.NativeFile, encoding: str) -> pa.NativeFile:
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
        if text.endswith(_END_OF_CSV.decode()):
            first = text.splitlines()[0][:80]
            raise InvalidArgument(f"a quote is never closed, that of the value {first!r}")
    return batch


def _aligned(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    names = batch.schema.names
    for given in batch.schema:
        wanted = schema.field(given.name).type if given.name in schema.names else given.type
        if pa.types.is_integer(given.type) and pa.types.is_timestamp(wanted):
            # Their unit is not known: Arrow would read seconds since 1970 as microseconds.
            raise InvalidArgument(f"column {given.name} has numbers, and {wanted} needs times")
    columns = [
        _cast(batch.column(field.name), field.type)
        if field.name in names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """The values in a type; times with an offset, if all have one, become those of UTC."""
    try:
        return values.cast(wanted)
    except pa.ArrowInvalid:
        if not (pa.types.is_string(values.type) and pa.types.is_timestamp(wanted)):
            raise
        return values.cast(pa.timestamp("us", "UTC")).cast(wanted)
