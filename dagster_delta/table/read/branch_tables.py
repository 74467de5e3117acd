"""What the tables of a branch declare, and the files that declare the branches of a root.

`<root>/_branches/<name>.json` declares a branch, whose tables are in `<root>/_branches/<name>`. The
properties of a table of a branch name the branch, the table of production and the version of it
that the branch began with.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress

import msgspec

from dagster_delta.errors import InvalidArgument, InvalidTable, StorageFailure, VersionNotFound
from dagster_delta.protocol.table_properties import (
    BRANCH_BASE_PROPERTY,
    BRANCH_OF_PROPERTY,
    BRANCH_PROPERTY,
)
from dagster_delta.storage import open_store
from dagster_delta.storage.locations import absolute_uri
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.read.snapshot import Snapshot, find_snapshot
from dagster_delta.table.table_discovery import BRANCHES_DIRECTORY

_LOG = logging.getLogger(__name__)

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_OTHER_CHARACTERS = re.compile(r"[^A-Za-z0-9._-]+")
_DECLARATION = ".json"


class BranchBase(msgspec.Struct, frozen=True):
    """The version of production's table that a table of a branch began with."""

    table_id: str
    version: int
    clone_version: int
    """The version of the branch's table that equals it."""

    @classmethod
    def of(cls, snapshot: Snapshot) -> BranchBase | None:
        """What the table began with; None if it is not of a branch, or began empty."""
        found = snapshot.metadata.configuration.get(BRANCH_BASE_PROPERTY, "").split(":")
        if len(found) != 3 or not (found[1].isdecimal() and found[2].isdecimal()):
            return None
        return cls(found[0], int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.table_id}:{self.version}:{self.clone_version}"


class DeclaredBranch(msgspec.Struct, frozen=True, rename="camel"):
    """The file that declares a branch."""

    name: str
    root: str
    """Location of production's tables."""
    created_ms: int
    """When the branch began, in milliseconds since the epoch."""
    pinned: bool = False
    """Whether it reads production's tables as of its beginning."""


class BranchTable(msgspec.Struct, frozen=True):
    """A branch, as far as one table of production is concerned."""

    branch: DeclaredBranch
    store: ObjectStore
    """Of the table in the branch, which need not exist."""

    def versions(self, production: ObjectStore) -> Iterator[Snapshot]:
        """The versions of tables whose files the branch reads, those of production included."""
        head = find_snapshot(self.store)
        with suppress(InvalidTable, VersionNotFound):
            # A clean-up may have deleted the older version, and then nothing can read it.
            if head is not None:
                yield head
                base = BranchBase.of(head)
                if base is not None and base.clone_version != head.version:
                    yield Snapshot.load(self.store, version=base.clone_version)
            elif self.branch.pinned:
                yield Snapshot.load(production, timestamp=self.branch.created_ms)


def branch_directory(name: str) -> str:
    """The directory of a branch: its name, with a digest if that has other characters."""
    # The directory must not have the name of a file that declares another branch.
    if _PLAIN_NAME.fullmatch(name) and not name.lower().endswith(_DECLARATION):
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    plain = _OTHER_CHARACTERS.sub("-", name).strip("-.")[:80] or "branch"
    return f"{plain}-{digest}"


def branch_of(snapshot: Snapshot) -> str | None:
    """The name of the branch that a table belongs to; None for a table of production."""
    return snapshot.metadata.configuration.get(BRANCH_PROPERTY)


def source_of(snapshot: Snapshot) -> str | None:
    """The location in production of a branch's table; None for a table of production."""
    return snapshot.metadata.configuration.get(BRANCH_OF_PROPERTY)


def read_declaration(store: ObjectStore, name: str) -> DeclaredBranch | None:
    """What declares a branch, by its directory's name; None if no file does."""
    path = declaration_path(name)
    try:
        return msgspec.json.decode(store.read(path), type=DeclaredBranch)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(
            f"the file that declares a branch cannot be read ({error}): restore it, or delete it "
            "with the directory of the branch",
            table=store.location.uri,
            file=path,
        ) from error


def declaration_path(name: str) -> str:
    """The path of the file that declares a branch, by its directory's name."""
    return f"{name}{_DECLARATION}"


def list_branches(
    root_uri: str, branch_root_uri: str, storage_options: Mapping[str, object]
) -> list[DeclaredBranch]:
    """The branches of the tables below `root_uri` that are at `branch_root_uri`, by name."""
    store = open_store(f"{branch_root_uri.rstrip('/')}/{BRANCHES_DIRECTORY}", storage_options)
    root = absolute_uri(root_uri)
    found = []
    for meta in store.list_from(""):
        if meta.path.endswith(_DECLARATION):
            declared = read_declaration(store, meta.path.removesuffix(_DECLARATION))
            if declared is not None and declared.root == root:
                found.append(declared)
    return sorted(found, key=lambda branch: branch.name)


def branches_of_table(
    production: ObjectStore, branch_root_uris: Mapping[str, Mapping[str, object] | None]
) -> list[BranchTable]:
    """The branches that may read the files of a table: those below the directories above it, and
    those at `branch_root_uris`, with their storage options.
    """
    uri, own = absolute_uri(production.location.uri), production.location.options
    found, root = dict[str, BranchTable](), uri
    while (root := root.rpartition("/")[0]) and not root.endswith((":", ":/")):
        for place, given in {root: own, **branch_root_uris}.items():
            options = given or own
            try:
                branches = list_branches(root, place, options)
            except StorageFailure as error:
                if place in branch_root_uris:
                    raise
                # The credentials of a table need not reach the directories above it.
                _LOG.warning("branches below %s were not looked for: %s", root, error)
                continue
            for branch in branches:
                directory = f"{BRANCHES_DIRECTORY}/{branch_directory(branch.name)}"
                table = f"{place.rstrip('/')}/{directory}/{uri.removeprefix(f'{root}/')}"
                found[table] = BranchTable(branch, open_store(table, options))
    return list(found.values())
