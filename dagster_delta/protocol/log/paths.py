"""The names of the files in `_delta_log`: parsing and formatting.

Spec: Delta Log Entries; Checkpoints.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

LOG_DIRECTORY = "_delta_log"
LAST_CHECKPOINT_PATH = f"{LOG_DIRECTORY}/_last_checkpoint"
SIDECAR_DIRECTORY = f"{LOG_DIRECTORY}/_sidecars"
STAGED_COMMIT_DIRECTORY = f"{LOG_DIRECTORY}/_staged_commits"

_COMMIT_NAME_LENGTH = len("00000000000000000000.json")

_NAME = re.compile(
    r"""(?P<version>[0-9]{20})\.
    (?:
        (?P<checksum>crc)
      | (?P<end>[0-9]{20})\.compacted\.json
      | checkpoint\.
        (?:
            (?P<classic>parquet)
          | (?P<part>[0-9]{10})\.(?P<parts>[0-9]{10})\.parquet
          | (?P<unique>[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})\.(?:json|parquet)
        )
    )""",
    re.VERBOSE,
)


class LogFileKind(Enum):
    """Kinds of log files."""

    COMMIT = "commit"
    """`n.json`: the actions of one version."""
    COMPACTED = "compacted"
    """`x.y.compacted.json`: the reconciled actions of the versions x to y."""
    CHECKPOINT = "checkpoint"
    """`n.checkpoint.parquet`: the reconciled actions up to n (V1, or V2 under a classic name)."""
    CHECKPOINT_PART = "checkpoint part"
    """`n.checkpoint.o.p.parquet`: part o of p of such a checkpoint."""
    CHECKPOINT_V2 = "V2 checkpoint"
    """`n.checkpoint.<uuid>.json` or `.parquet`: a manifest, with its files in sidecars."""
    CHECKSUM = "checksum"
    """`n.crc`: counts and state of version n."""


class LogFileName(NamedTuple):
    """A parsed file name."""

    kind: LogFileKind
    version: int
    """The (first) version of the file."""
    end_version: int
    """The last version of the file; differs from its version only for a compacted file."""
    part: int = 1
    """Number of this checkpoint part, from 1."""
    num_parts: int = 1
    """Parts that make up the checkpoint."""


def parse_log_file_name(name: str) -> LogFileName | None:
    """The parsed name, or None if readers ignore such a file."""
    # Nearly all files of a long log are commits: parse them without a regular expression.
    if len(name) == _COMMIT_NAME_LENGTH and name.endswith(".json") and _is_decimal(name[:20]):
        version = int(name[:20])
        return LogFileName(LogFileKind.COMMIT, version, version)
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    version = int(found["version"])
    if found["checksum"]:
        return LogFileName(LogFileKind.CHECKSUM, version, version)
    if found["classic"]:
        return LogFileName(LogFileKind.CHECKPOINT, version, version)
    if found["unique"]:
        return LogFileName(LogFileKind.CHECKPOINT_V2, version, version)
    if found["end"]:
        end = int(found["end"])
        return LogFileName(LogFileKind.COMPACTED, version, end) if version < end else None
    part, num_parts = int(found["part"]), int(found["parts"])
    if not 1 <= part <= num_parts:
        return None
    return LogFileName(LogFileKind.CHECKPOINT_PART, version, version, part, num_parts)


def _is_decimal(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def version_prefix(version: int) -> str:
    """Prefix of the names of a version's files; a listing from this version starts here."""
    return f"{version:020d}"


def commit_path(version: int) -> str:
    """Path of the commit, relative to the table root."""
    return f"{LOG_DIRECTORY}/{version:020d}.json"


def checksum_path(version: int) -> str:
    """Path of the version checksum."""
    return f"{LOG_DIRECTORY}/{version:020d}.crc"


def checkpoint_path(version: int) -> str:
    """Path of the single-file checkpoint with a classic name."""
    return f"{LOG_DIRECTORY}/{version:020d}.checkpoint.parquet"


def multi_part_checkpoint_paths(version: int, num_parts: int) -> tuple[str, ...]:
    """Paths of the parts of a checkpoint, in order."""
    return tuple(
        f"{LOG_DIRECTORY}/{version:020d}.checkpoint.{part:010d}.{num_parts:010d}.parquet"
        for part in range(1, num_parts + 1)
    )


def v2_checkpoint_path(version: int, unique: str, extension: str) -> str:
    """Path of a V2 checkpoint's manifest."""
    return f"{LOG_DIRECTORY}/{version:020d}.checkpoint.{unique}.{extension}"


def sidecar_path(path: str) -> str:
    """Path of a sidecar: in its directory, unless the manifest names it by an absolute URI."""
    if path.startswith("/") or re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", path):
        return path
    return f"{SIDECAR_DIRECTORY}/{path}"
