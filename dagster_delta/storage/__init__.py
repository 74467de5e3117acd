"""How bytes are read, listed and created: one port, and a store for each kind of storage.

Tested by `tests/storage`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping

from dagster_delta.errors import InvalidArgument, StorageFailure
from dagster_delta.storage.locations import (
    absolute_uri,
    canonical_uri,
    catalog_name,
    catalog_uri,
    check_no_password,
    check_place,
    holds_password,
    local_root,
    resolve_variable,
    scheme_of,
)
from dagster_delta.storage.object_store import (
    CreatingResolver,
    ObjectMeta,
    ObjectStore,
    StoreLocation,
    TableResolver,
)

__all__ = [
    "CreatingResolver",
    "ObjectMeta",
    "ObjectStore",
    "StoreLocation",
    "TableResolver",
    "absolute_uri",
    "canonical_uri",
    "catalog_name",
    "catalog_uri",
    "check_no_password",
    "check_place",
    "holds_password",
    "is_of_catalog",
    "local_root",
    "open_store",
    "resolve_variable",
    "scheme_of",
]


_OPENERS = {"unity_catalog_table": "dagster_delta.catalogs.unity_store:open_unity_table"}
"""The functions that open the tables of catalogs, by an option that only those have. By name, as
catalogs are built on stores."""


def is_of_catalog(storage_options: Mapping[str, object]) -> bool:
    """Whether options name a table of a catalog, which gives the credentials of its storage."""
    return not _OPENERS.keys().isdisjoint(storage_options)


def open_store(
    uri: str | os.PathLike[str], storage_options: Mapping[str, object] | None = None
) -> ObjectStore:
    """The store rooted at `uri`, which need not exist yet; nothing is read to open it.

    Args:
        uri: a local path, or a URI: `file:`, `memory:`, `s3:`, `gs:`, `abfss:`, `az:`, `hdfs:`,
            or any protocol of fsspec. `catalog://main.shop.orders`, or `uc://…`, is the table of
            that name in the catalog of the option `catalog`.
        storage_options: credentials and settings; the module of each store lists those it supports.
            They, and the URI, may be environment variables, as Dagster's `EnvVar`. The option
            `catalog` is a resolver of names, such as `dagster_delta.catalogs.UnityCatalog`.

    Raises:
        TableNotFound: the catalog has no table of the name.
        InvalidArgument: the URI or an option is invalid for its kind of storage, or the URI holds a
            password or a signature, or is a path that looks like a URI.
        StorageFailure: the package that serves this kind of storage is not installed.
    """
    # A store is imported when it is first opened: importing the cloud stores takes longer than
    # everything else.
    location = os.fspath(resolve_variable(uri))
    storage_options = {k: resolve_variable(value) for k, value in (storage_options or {}).items()}
    if not location.strip():
        raise InvalidArgument("the location of a table is empty: give a path or a URI")
    check_no_password(location)
    if (name := catalog_name(location)) is not None or "catalog" in storage_options:
        found = _find_in_catalog(location, name, storage_options)
        return open_store(found.uri, found.options)
    for option in storage_options.keys() & _OPENERS.keys():
        module, _, function = _OPENERS[option].partition(":")
        opened: ObjectStore = getattr(importlib.import_module(module), function)(
            location, storage_options
        )
        return opened
    match scheme_of(location):
        case None | "file":
            from dagster_delta.storage.local_store import LocalStore

            return LocalStore(location, storage_options)
        case "memory":
            from dagster_delta.storage.memory_store import MemoryStore

            return MemoryStore(location)
        case "hdfs":
            from dagster_delta.storage.hdfs_store import HdfsStore

            return HdfsStore(location, storage_options)
        case scheme:
            from dagster_delta.storage.cloud.clouds import CLOUDS

            if scheme not in CLOUDS:
                from dagster_delta.storage.fsspec_store import FsspecStore

                return FsspecStore(location, storage_options)
            try:
                from dagster_delta.storage.cloud.store import CloudStore
            except ImportError as error:
                extra = f"dagster-delta-protocol[{CLOUDS[scheme].name}]"
                raise StorageFailure(
                    f"Tables in the cloud need its client: pip install '{extra}'"
                ) from error
            return CloudStore(location, storage_options)


def _find_in_catalog(
    location: str, name: str | None, options: Mapping[str, object]
) -> StoreLocation:
    """Where the table of a name is, by the catalog among the options."""
    resolve = getattr(options.get("catalog"), "resolve", None)
    if resolve is None:
        raise InvalidArgument(
            f"{location} is the name of a table in a catalog: pass the catalog among the storage "
            "options, as {'catalog': UnityCatalog(…)}; sensors and jobs take a "
            "UnityCatalogResource as storage_options, and components one with provider: "
            "unity_catalog"
        )
    if not name:
        raise InvalidArgument(
            f"the storage options are a catalog, which finds tables by name, and {location!r} is "
            "none: write catalog://main.shop.orders"
        )
    if others := sorted(options.keys() - {"catalog"}):
        raise InvalidArgument(
            f"the storage options have a catalog and {', '.join(others)}: options of the storage "
            "are storage_options of the catalog"
        )
    found = resolve(name)
    if not isinstance(found, StoreLocation):
        raise InvalidArgument(
            f"{type(options['catalog']).__name__}.resolve returned a {type(found).__name__}: it "
            "returns a StoreLocation(uri, options)"
        )
    return found
