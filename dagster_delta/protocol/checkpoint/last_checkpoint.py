"""The `_last_checkpoint` file: a hint, used only if it is valid.

Spec: Last Checkpoint File; JSON checksum.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from urllib.parse import quote

import msgspec

from dagster_delta.protocol.log.paths import LogFileKind, parse_log_file_name

# Spec: tags hold any additional metadata about the last checkpoint.
_FILE_NAME_TAG = "fileName"


class LastCheckpoint(msgspec.Struct, frozen=True):
    """Where the newest checkpoint was when the hint was written."""

    version: int
    """Version of the checkpoint."""
    size: int | None = None
    """Number of actions in the checkpoint."""
    parts: int | None = None
    """Number of files of a multi-part checkpoint."""
    size_bytes: int | None = None
    """Bytes of the checkpoint."""
    num_add_files: int | None = None
    """Number of add actions in the checkpoint."""
    file_name: str | None = None
    """Name of the checkpoint in the log, if its version and parts do not give it."""


class _NumberText(str):
    """A JSON number as spelled in the file, which is its canonical form."""

    __slots__ = ()


class _InvalidJson(ValueError):
    """JSON that the specification does not allow in this file."""


def parse_last_checkpoint(data: bytes) -> LastCheckpoint | None:
    """The hint, or None if the file is empty, truncated, malformed or fails its checksum."""
    try:
        value = _load(data.decode("utf-8"))
        if not isinstance(value, dict):
            return None
        stated = value.get("checksum")
        if isinstance(stated, str) and stated != _checksum_of(value):
            return None
        version = _integer(value, "version")
        if version is None or version < 0:
            return None
        return LastCheckpoint(
            version=version,
            size=_integer(value, "size"),
            parts=_integer(value, "parts"),
            size_bytes=_integer(value, "sizeInBytes"),
            num_add_files=_integer(value, "numOfAddFiles"),
            file_name=_file_name(value, version),
        )
    except (ValueError, RecursionError):
        return None


def encode_last_checkpoint(
    hint: LastCheckpoint, extra: Mapping[str, object] | None = None
) -> bytes:
    """The file's contents, its checksum included.

    `extra` are further keys, such as `checkpointSchema`, with JSON values.
    """
    named = {
        "version": hint.version,
        "size": hint.size,
        "parts": hint.parts,
        "sizeInBytes": hint.size_bytes,
        "numOfAddFiles": hint.num_add_files,
        "tags": None if hint.file_name is None else {_FILE_NAME_TAG: hint.file_name},
    }
    value = {key: item for key, item in named.items() if item is not None} | dict(extra or {})
    text = json.dumps(value, separators=(",", ":"))
    value["checksum"] = json_checksum(text)
    return json.dumps(value, separators=(",", ":")).encode()


def json_checksum(text: str) -> str:
    """The MD5 of the canonical form, in lower-case hexadecimal."""
    return _checksum_of(_load(text))


def _checksum_of(value: object) -> str:
    # It loads OpenSSL, and few files have a checksum.
    import hashlib

    return hashlib.md5(_canonical(value).encode(), usedforsecurity=False).hexdigest()


def _canonical(value: object) -> str:
    if isinstance(value, dict):
        value = {key: item for key, item in value.items() if key != "checksum"}
    # Spec: a byte-order sort on paths; percent-encoding has left nothing but ASCII in them.
    pairs = sorted(_leaves(value, ""))
    return ",".join(f"{path}={leaf}" if path else leaf for path, leaf in pairs)


def _leaves(value: object, path: str) -> Iterator[tuple[str, str]]:
    prefix = f"{path}+" if path else ""
    match value:
        case dict():
            for key, item in value.items():
                yield from _leaves(item, f"{prefix}{_quoted(key)}")
        case list():
            for index, item in enumerate(value):
                yield from _leaves(item, f"{prefix}{index}")
        case _NumberText():
            yield path, str(value)
        case str():
            yield path, _quoted(value)
        case None:
            yield path, "null"
        case _:
            yield path, "true" if value else "false"


def _quoted(text: str) -> str:
    # Spec: all octets except letters, digits and "-._~" are percent-encoded, in upper case.
    return f'"{quote(text, safe="")}"'


def _load(text: str) -> object:
    return json.loads(
        text,
        parse_int=_NumberText,
        parse_float=_NumberText,
        parse_constant=_refuse_constant,
        object_pairs_hook=_unique_keys,
    )


def _refuse_constant(name: str) -> object:
    raise _InvalidJson(f"{name} is no JSON number")


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _InvalidJson("a key occurs twice")
    return value


def _integer(value: Mapping[str, object], key: str) -> int | None:
    number = value.get(key)
    return int(number) if isinstance(number, _NumberText) else None


def _file_name(value: Mapping[str, object], version: int) -> str | None:
    """Name of a V2 checkpoint: this library puts it into the tags, delta-spark beside them."""
    for key, name in (("tags", _FILE_NAME_TAG), ("v2Checkpoint", "path")):
        found = value.get(key)
        path = found.get(name) if isinstance(found, dict) else None
        # A hint may be damaged: the file has to be one of the log.
        name = path.rpartition("/")[2] if type(path) is str else ""
        parsed = parse_log_file_name(name)
        if parsed and parsed.kind is LogFileKind.CHECKPOINT_V2 and parsed.version == version:
            return name
    return None
