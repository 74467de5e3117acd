"""The options of a table as a source, with the names of Delta Lake, and the offsets of a stream."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from dagster_delta.errors import InvalidArgument

BEGINNING = -1
"""The version in the start of a query, which `StreamOffset.origin` replaces."""


class StreamOffset(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A position between two files of the log: everything before it was read, nothing after it.

    It is kept in the checkpoint of a streaming query, and so has a wire form.
    """

    table_id: str
    """UUID of the table."""
    version: int
    """The version to read next."""
    index: int = 0
    """Number of files of that version already read."""
    is_snapshot: bool = False
    """Whether the files are those that were live at the version, or else those that it added."""
    origin: StreamOffset | UnsetType = UNSET
    """In the end of the first batch of a query: where that batch begins. Spark records no start for
    it, and asks for another one when it repeats the batch."""

    commit: str | UnsetType = UNSET
    """Digest of the last commit that was read: a log with another one has another history. It
    is lacking where a clean-up of the log has deleted that commit."""

    @property
    def last_read(self) -> int:
        """The version of that commit."""
        return self.version if self.is_snapshot or self.index else self.version - 1

    @classmethod
    def from_json_value(cls, value: object) -> StreamOffset:
        """The offset that `to_json_value` gave."""
        try:
            return msgspec.convert(value, cls)
        except msgspec.ValidationError as error:
            raise InvalidArgument(
                f"the checkpoint of the query holds {value!r}, which is not an offset of this "
                f"source ({error}): give the query a checkpoint location of its own"
            ) from error

    def to_json_value(self) -> dict[str, object]:
        """The offset as plain values."""
        value: dict[str, object] = msgspec.to_builtins(self)
        return value

    def next_version(self) -> StreamOffset:
        """The position before the first file that the next version added."""
        return StreamOffset(table_id=self.table_id, version=self.version + 1)

    def past(self, files: int) -> StreamOffset:
        """The position this many files further in the same version."""
        return msgspec.structs.replace(self, index=self.index + files, origin=UNSET, commit=UNSET)


class Admission(msgspec.Struct):
    """Limits of one batch, and what it has taken so far."""

    max_files: int | None = None
    """Maximum number of files; None for any number."""
    max_bytes: int | None = None
    """Approximate maximum size in bytes: the file that reaches the limit is taken."""
    files: int = 0
    """Files taken so far."""
    size_bytes: int = 0
    """Bytes of the files taken so far."""

    @property
    def is_full(self) -> bool:
        """Whether the batch is full."""
        return (self.max_files is not None and self.files >= self.max_files) or (
            self.max_bytes is not None and self.size_bytes >= self.max_bytes
        )

    def take(self, sizes_bytes: Sequence[int]) -> int:
        """How many of some files, in order, the batch takes."""
        for taken, size in enumerate(sizes_bytes):
            if self.is_full:
                return taken
            self.files += 1
            self.size_bytes += size
        return len(sizes_bytes)

    def take_whole(self, sizes_bytes: Sequence[int]) -> None:
        """Take all of some files together, regardless of the limits."""
        self.files += len(sizes_bytes)
        self.size_bytes += sum(sizes_bytes)


_STORAGE_PREFIX = "storage."
"""The prefix of a table's storage options among the options of a source."""

DEFAULT_MAX_FILES = 1000
"""Number of files of a batch if the query limits neither files nor bytes."""

_Version = Annotated[int, msgspec.Meta(ge=0)]
_Limit = Annotated[int, msgspec.Meta(ge=1)]
_Name = Annotated[str, msgspec.Meta(min_length=1)]


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The options of a query for the table that it reads or writes."""

    uri: str = msgspec.field(name="path")
    storage_options: Mapping[str, str] = {}
    version_as_of: _Version | None = None
    """Version that a batch query reads; the latest by default."""
    timestamp_as_of: str | None = None
    """Instead: the newest version committed at or before this time."""
    starting_version: _Version | Literal["latest"] | None = None
    """First version whose commits a stream reads, or `latest` for future commits only. By default
    it begins with all existing rows."""
    starting_timestamp: str | None = None
    """Instead: the oldest version committed at or after this time."""
    max_files: _Limit | None = msgspec.field(name="maxFilesPerTrigger", default=None)
    """Maximum number of files of one batch of a stream."""
    max_bytes: _Limit | None = msgspec.field(name="maxBytesPerTrigger", default=None)
    """Approximate maximum size of one batch of a stream, in bytes."""
    ignore_deletes: bool = False
    """Whether commits that only delete rows are ignored."""
    ignore_changes: bool = False
    """Whether all rows of rewritten files are read again, and commits that only delete rows are
    ignored."""
    skip_change_commits: bool = False
    """Whether commits that delete or change rows are ignored, including their new rows."""
    read_change_feed: bool = False
    """Whether the stream reads row changes."""
    merge_schema: bool = False
    """Whether a write adds columns, and widens types if the table allows it."""
    overwrite_schema: bool = False
    """Whether an overwrite gives the table the columns of the rows."""
    replace_where: str | None = None
    """Spark SQL: an overwrite replaces the rows that satisfy it. By default it replaces all."""
    partition_overwrite: Literal["dynamic", "static"] | None = msgspec.field(
        name="partitionOverwriteMode", default=None
    )
    """`dynamic`: an overwrite replaces the partitions that it has rows for; `static`: all."""
    partition_by: tuple[_Name, ...] | None = None
    """Partition columns of a table that a write creates."""
    user_metadata: str | None = None
    """User metadata for the commitInfo of a write."""

    def __repr__(self) -> str:
        # Storage options may be secrets.
        return f"SourceOptions({self.uri!r})"

    def admission(self) -> Admission:
        """The limits of a batch of a stream."""
        is_limited = self.max_files is not None or self.max_bytes is not None
        return Admission(self.max_files if is_limited else DEFAULT_MAX_FILES, self.max_bytes)

    def check_use(self, use: Use) -> SourceOptions:
        """The options, if all of them have an effect on a use of the table.

        Raises:
            InvalidArgument: some have none.
        """
        known = {field.name: field for field in msgspec.structs.fields(SourceOptions)}
        others = {name for names in _OPTIONS_OF.values() for name in names.split()}
        for name in sorted(others.difference(_OPTIONS_OF[use].split())):
            if getattr(self, name) != known[name].default:
                allowed = ", ".join(known[own].encode_name for own in _OPTIONS_OF[use].split())
                raise InvalidArgument(
                    f"{known[name].encode_name} has no effect on {use}, whose options are "
                    f"{allowed}: leave it out",
                    table=self.uri,
                )
        return self


Use = Literal["a batch query", "a stream", "an append", "an overwrite"]
_OPTIONS_OF: Mapping[Use, str] = {
    "a batch query": "version_as_of timestamp_as_of",
    "a stream": (
        "starting_version starting_timestamp max_files max_bytes ignore_deletes ignore_changes "
        "skip_change_commits read_change_feed"
    ),
    "an append": "merge_schema partition_by user_metadata",
    "an overwrite": (
        "merge_schema partition_by user_metadata overwrite_schema replace_where partition_overwrite"
    ),
}


def parse_source_options(options: Mapping[str, str]) -> SourceOptions:
    """The options of a query, by name; case does not matter."""
    # Spark names the provider if the options are those of a CREATE TABLE, and hands over none of
    # them when that table is queried.
    if {"path", "provider"} & {name.casefold() for name in options} != {"path"}:
        raise InvalidArgument(
            "the location of the table is lacking, as of all tables in the catalog of Spark "
            "(CREATE TABLE, saveAsTable): pass it to load(…) or save(…), or in SQL use CREATE "
            "TEMPORARY VIEW … USING delta_log OPTIONS (path '…')"
        )
    storage: dict[str, str] = {}
    values: dict[str, object] = {"storageOptions": storage}
    for name, text in options.items():
        folded = name.casefold()
        if folded.startswith(_STORAGE_PREFIX):
            storage[name[len(_STORAGE_PREFIX) :]] = text
        elif folded in _SPELLED:
            spelled = _SPELLED[folded]
            values[spelled] = _READ.get(spelled, _parse_value)(text)
        else:
            raise InvalidArgument(
                f"there is no option {name!r}: the options are "
                f"{', '.join(dict.fromkeys(_SPELLED.values()))}, and storage options behind "
                f"{_STORAGE_PREFIX!r}"
            )
    for pair in _ALTERNATIVES:
        if values.keys() >= set(pair):
            raise InvalidArgument(f"pass {' or '.join(pair)}, not both")
    try:
        return msgspec.convert(values, SourceOptions)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$.")
        name = re.findall(r"\w+", place)[0]
        raise InvalidArgument(f"the option {name} is {values[name]!r}: {problem}") from error


def _parse_value(text: str) -> object:
    """A number, true or false, or the word in lower case."""
    word = text.strip().lower()
    return {"true": True, "false": False}.get(word, int(word) if word.isdecimal() else word)


def _size_bytes(text: str) -> object:
    """The bytes of a size as Spark spells it, such as `512k` or `2g`; another text unchanged."""
    found = re.fullmatch(r"(\d+)\s*([kmgt]?)b?", text.strip().lower())
    return text if found is None else int(found[1]) << 10 * " kmgt".index(found[2] or " ")


_SPELLED = {
    field.encode_name.casefold(): field.encode_name
    for field in msgspec.structs.fields(SourceOptions)
    if field.name != "storage_options"
} | {"readchangedata": "readChangeFeed"}
_READ: Mapping[str, Callable[[str], object]] = {
    **dict.fromkeys(
        ("path", "timestampAsOf", "startingTimestamp", "replaceWhere", "userMetadata"), str
    ),
    "maxBytesPerTrigger": _size_bytes,
    "partitionBy": lambda text: [name.strip() for name in text.split(",")],
}
"""How the text of an option is read, if it is not a single word."""
_ALTERNATIVES = (
    ("versionAsOf", "timestampAsOf"),
    ("startingVersion", "startingTimestamp"),
    ("replaceWhere", "partitionOverwriteMode"),
)
