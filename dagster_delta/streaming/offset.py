"""How far a stream has read a log, and how much it may read at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from dagster_delta.errors import InvalidArgument

__all__ = ["Admission", "StreamOffset"]


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

    @classmethod
    def from_json_value(cls, value: object) -> StreamOffset:
        """The offset that `to_json_value` gave.

        Raises:
            InvalidArgument: the value is not an offset, so the checkpoint belongs to another
                source.
        """
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
        return msgspec.structs.replace(self, index=self.index + files)


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
