"""The options of a table as a source, with the names of Delta Lake, and the offsets of a stream."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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
    """Digest of the last commit that was read: a log with another one has another history. Offsets
    of older releases lack it."""

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
                f"the checkpoint of the query holds {value!r}, which is no offset of this source "
                f"({error}): give the query a checkpoint location of its own"
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


@dataclass(slots=True)
class Admission:
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

_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a query for the table that it reads."""

    uri: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    version_as_of: int | None = None
    """Version that a batch query reads; the latest by default."""
    timestamp_as_of: str | None = None
    """Instead: the newest version committed at or before this time."""
    starting_version: int | str | None = None
    """First version whose commits a stream reads, or `latest` for future commits only. By default
    it begins with all existing rows."""
    starting_timestamp: str | None = None
    """Instead: the oldest version committed at or after this time."""
    max_files: int | None = None
    """Maximum number of files of one batch of a stream."""
    max_bytes: int | None = None
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
    partition_overwrite: str | None = None
    """`dynamic`: an overwrite replaces the partitions that it has rows for; `static`: all."""
    partition_by: tuple[str, ...] | None = None
    """Partition columns of a table that a write creates."""
    user_metadata: str | None = None
    """User metadata for the commitInfo of a write."""

    @property
    def replaced_rows(self) -> str | None:
        """What an overwrite replaces, as the argument `where` of `DeltaTable.overwrite`."""
        return "dynamic" if self.partition_overwrite == "dynamic" else self.replace_where

    @property
    def reads_old_rows(self) -> bool:
        """Whether an option selects which rows to read."""
        return any(value is not None for value in map(self.__getattribute__, _READ_ATTRIBUTES)) or (
            self.allows_deletes or self.read_change_feed
        )

    @property
    def writes(self) -> bool:
        """Whether an option is for writes."""
        return any(map(self.__getattribute__, _WRITE_ATTRIBUTES))

    @property
    def allows_changes(self) -> bool:
        """Whether commits that rewrite rows do not stop the stream."""
        return self.ignore_changes or self.skip_change_commits

    @property
    def allows_deletes(self) -> bool:
        """Whether commits that only delete rows do not stop the stream."""
        return self.ignore_deletes or self.allows_changes


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
    values: dict[str, Any] = {}
    storage: dict[str, str] = {}
    for name, text in options.items():
        folded = name.casefold()
        if folded.startswith(_STORAGE_PREFIX):
            storage[name[len(_STORAGE_PREFIX) :]] = text
            continue
        if folded not in _OPTIONS:
            raise InvalidArgument(
                f"there is no option {name!r}: the options are {', '.join(_SPELLING.values())}, "
                f"and storage options behind {_STORAGE_PREFIX!r}"
            )
        attribute, kind = _OPTIONS[folded]
        if not re.fullmatch(kind.pattern, text.strip(), re.IGNORECASE | re.DOTALL):
            raise InvalidArgument(
                f"the option {_SPELLING[folded]} is {text!r}: it is {kind.wanted}"
            )
        values[attribute] = kind.read(text)
    for pair in _ALTERNATIVES:
        if values.keys() >= {_SPELLED[name][0] for name in pair}:
            raise InvalidArgument(f"pass {' or '.join(pair)}, not both")
    return SourceOptions(storage_options=storage, **values)


def _word(text: str) -> str:
    return text.strip().lower()


class _Kind(NamedTuple):
    """How the text of an option is read."""

    wanted: str
    """What it is, for the message."""
    pattern: str
    read: Callable[[str], object]


_TEXT = _Kind("", r".*", str)
_FLAG = _Kind("true or false", r"true|false", lambda text: _word(text) == "true")
_VERSION = _Kind("the number of a version, from 0 on", r"\d+", int)
_START = _Kind(
    "the number of a version, from 0 on, or latest",
    r"\d+|latest",
    lambda text: "latest" if _word(text) == "latest" else int(text),
)
_COUNT = _Kind("a number from 1 on", r"0*[1-9]\d*", int)
_SIZE = _Kind(
    "a number of bytes from 1 on, or one such as 512k, 100m or 2g",
    r"0*[1-9]\d*\s*[kmgt]?b?",
    lambda text: int(re.sub(r"\D", "", text)) << _SHIFTS[re.sub(r"[\d\sb]", "", _word(text))],
)
_COLUMNS = _Kind(
    "column names with commas between them",
    r"\s*[^,\s][^,]*(,\s*[^,\s][^,]*)*",
    lambda text: tuple(name.strip() for name in text.split(",")),
)
_OVERWRITE_MODE = _Kind("dynamic or static", r"dynamic|static", _word)

_READ_ATTRIBUTES = (
    *("version_as_of", "timestamp_as_of", "starting_version", "starting_timestamp"),
    *("max_files", "max_bytes"),
)
_WRITE_ATTRIBUTES = (
    *("merge_schema", "overwrite_schema", "replace_where", "partition_overwrite"),
    *("partition_by", "user_metadata"),
)

_SPELLED: dict[str, tuple[str, _Kind]] = {
    "path": ("uri", _TEXT),
    "versionAsOf": ("version_as_of", _VERSION),
    "timestampAsOf": ("timestamp_as_of", _TEXT),
    "startingVersion": ("starting_version", _START),
    "startingTimestamp": ("starting_timestamp", _TEXT),
    "maxFilesPerTrigger": ("max_files", _COUNT),
    "maxBytesPerTrigger": ("max_bytes", _SIZE),
    "ignoreDeletes": ("ignore_deletes", _FLAG),
    "ignoreChanges": ("ignore_changes", _FLAG),
    "skipChangeCommits": ("skip_change_commits", _FLAG),
    "readChangeFeed": ("read_change_feed", _FLAG),
    "readChangeData": ("read_change_feed", _FLAG),
    "mergeSchema": ("merge_schema", _FLAG),
    "overwriteSchema": ("overwrite_schema", _FLAG),
    "replaceWhere": ("replace_where", _TEXT),
    "partitionOverwriteMode": ("partition_overwrite", _OVERWRITE_MODE),
    "partitionBy": ("partition_by", _COLUMNS),
    "userMetadata": ("user_metadata", _TEXT),
}
_ALTERNATIVES = (
    ("versionAsOf", "timestampAsOf"),
    ("startingVersion", "startingTimestamp"),
    ("replaceWhere", "partitionOverwriteMode"),
)
_SPELLING = {name.casefold(): name for name in _SPELLED}
_OPTIONS = {name.casefold(): parsed for name, parsed in _SPELLED.items()}
