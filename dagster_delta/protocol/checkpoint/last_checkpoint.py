"""The `_last_checkpoint` file: a hint, used only if it is valid.

Spec: Last Checkpoint File; JSON checksum.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from urllib.parse import quote

import msgspec

from dagster_delta.protocol.log.paths import (
    LOG_DIRECTORY,
    LogFileKind,
    checkpoint_path,
    multi_part_checkpoint_paths,
    parse_log_file_name,
)

# Spec: tags hold any additional metadata about the last checkpoint.
_FILE_NAME_TAG = "fileName"
# Looking up more parts by name takes longer than listing a log.
_MAX_PARTS = 1_000


class LastCheckpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """The hint. Readers here use what names the checkpoint: its version, parts and tags."""

    version: int
    """Version of the checkpoint."""
    size: int | None = None
    """Number of actions in the checkpoint."""
    parts: int | None = None
    """Number of files of a multi-part checkpoint."""
    size_bytes: int | None = msgspec.field(name="sizeInBytes", default=None)
    """Bytes of the checkpoint."""
    num_add_files: int | None = msgspec.field(name="numOfAddFiles", default=None)
    """Number of add actions in the checkpoint."""
    tags: Mapping[str, str] | None = None
    """Hold the name of the file where the version and the parts do not give it."""

    def paths(self) -> tuple[str, ...]:
        """Paths of the files of the checkpoint, relative to the table root. They may not exist."""
        if self.tags:
            return (f"{LOG_DIRECTORY}/{self.tags[_FILE_NAME_TAG]}",)
        if self.parts is None:
            return (checkpoint_path(self.version),)
        return multi_part_checkpoint_paths(self.version, self.parts)

    def naming(self, path: str) -> LastCheckpoint:
        """The hint to a V2 checkpoint whose manifest has this path."""
        return msgspec.structs.replace(self, tags={_FILE_NAME_TAG: path.rpartition("/")[2]})


class _NumberText(str):
    """A JSON number as spelled in the file, which is its canonical form."""

    __slots__ = ()


def parse_last_checkpoint(data: bytes) -> LastCheckpoint | None:
    """The version in the hint and what names its files; None if the hint is empty, truncated,
    malformed or fails its checksum.
    """
    try:
        value = _parse_json(data.decode("utf-8"))
        if not isinstance(value, dict):
            return None
        stated, version = value.get("checksum"), value.get("version")
        if isinstance(stated, str) and stated != _checksum_of(value):
            return None
        # An integer in its spelling: a fraction has none.
        if not isinstance(version, _NumberText) or not version.isdecimal():
            return None
        name = _find_file_name(value, int(version))
        tags = None if name is None else {_FILE_NAME_TAG: name}
        return LastCheckpoint(version=int(version), parts=_find_parts(value), tags=tags)
    except (ValueError, RecursionError):
        return None


def _find_parts(value: Mapping[str, object]) -> int | None:
    parts = value.get("parts")
    if not isinstance(parts, _NumberText) or not parts.isdecimal():
        return None
    return int(parts) if 0 < int(parts) <= _MAX_PARTS else None


def _find_file_name(value: Mapping[str, object], version: int) -> str | None:
    """Name of a V2 checkpoint: this library puts it into the tags, delta-spark beside them."""
    for key, name in (("tags", _FILE_NAME_TAG), ("v2Checkpoint", "path")):
        found = value.get(key)
        path = found.get(name) if isinstance(found, dict) else None
        # A hint may be damaged: the file has to be one of the log.
        file_name = path.rpartition("/")[2] if type(path) is str else ""
        parsed = parse_log_file_name(file_name)
        if parsed and parsed.kind is LogFileKind.CHECKPOINT_V2 and parsed.version == version:
            return file_name
    return None


def encode_last_checkpoint(hint: LastCheckpoint) -> bytes:
    """The file's contents, its checksum included."""
    checksum = json_checksum(msgspec.json.encode(hint).decode())
    return msgspec.json.encode({**msgspec.to_builtins(hint), "checksum": checksum})


def json_checksum(text: str) -> str:
    """The MD5 of the canonical form, in lower-case hexadecimal."""
    return _checksum_of(_parse_json(text))


def _checksum_of(value: object) -> str:
    # It loads OpenSSL, and few files have a checksum.
    import hashlib

    return hashlib.md5(_canonicalize_json(value).encode(), usedforsecurity=False).hexdigest()


def _canonicalize_json(value: object) -> str:
    if isinstance(value, dict):
        value = {key: item for key, item in value.items() if key != "checksum"}
    # Spec: a byte-order sort on paths; percent-encoding has left nothing but ASCII in them.
    pairs = sorted(_walk_leaves(value, ""))
    return ",".join(f"{path}={leaf}" if path else leaf for path, leaf in pairs)


def _walk_leaves(value: object, path: str) -> Iterator[tuple[str, str]]:
    prefix = f"{path}+" if path else ""
    match value:
        case dict():
            for key, item in value.items():
                yield from _walk_leaves(item, f"{prefix}{_quote_text(key)}")
        case list():
            for index, item in enumerate(value):
                yield from _walk_leaves(item, f"{prefix}{index}")
        case _NumberText():
            yield path, str(value)
        case str():
            yield path, _quote_text(value)
        case None:
            yield path, "null"
        case _:
            yield path, "true" if value else "false"


def _quote_text(text: str) -> str:
    # Spec: all octets except letters, digits and "-._~" are percent-encoded, in upper case.
    return f'"{quote(text, safe="")}"'


def _parse_json(text: str) -> object:
    return json.loads(
        text,
        parse_int=_NumberText,
        parse_float=_NumberText,
        parse_constant=_refuse_constant,
        object_pairs_hook=_unique_keys,
    )


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key occurs twice")
    return value
