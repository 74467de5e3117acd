"""What a store has to know of a table of Unity Catalog, as options of the store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from dagster_delta.catalogs.unity_client import UnityServer
from dagster_delta.errors import InvalidArgument

OPTION_PREFIX = "unity_catalog_"

Commits = Literal["catalog", "storage"]


class UnityTable(msgspec.Struct, frozen=True):
    """A table of a server: what the options `unity_catalog_…` of a store say."""

    server: UnityServer
    table: str
    """Its name, `catalog.schema.table`."""
    location: str
    """Its location as the catalog spells it."""
    table_id: str | None = None
    """Its id in the catalog; None for an external table that is not registered yet."""
    commits: Commits = "catalog"
    """Who takes commits: the catalog, or the storage as of any table."""
    is_new: bool = False
    """Whether the first commit registers the table."""
    properties: Mapping[str, str] = {}
    """What the first commit of a new table has to set."""
    vends_credentials: bool = True
    is_older: bool = False
    """Whether the server lacks the Delta API."""

    def to_options(self) -> dict[str, object]:
        """The options of a store that `of_options` reads; all are texts."""
        values = msgspec.structs.asdict(self) | msgspec.structs.asdict(self.server)
        del values["server"]
        values["properties"] = msgspec.json.encode(self.properties).decode()
        given = {name: str(value) for name, value in values.items() if value is not None}
        return {f"{OPTION_PREFIX}{name}": value for name, value in given.items()}

    @classmethod
    def of_options(cls, options: Mapping[str, object]) -> UnityTable:
        """The table that options name. Raises InvalidArgument for others than those of
        `to_options`.
        """
        given = {name.removeprefix(OPTION_PREFIX): str(value) for name, value in options.items()}
        try:
            server = msgspec.convert(
                {key: given.pop(key) for key in UnityServer.__struct_fields__ if key in given},
                UnityServer,
                strict=False,
            )
            properties = msgspec.json.decode(given.pop("properties", "{}"))
            values = {**given, "server": server, "properties": properties}
            return msgspec.convert(values, cls, strict=False)
        except (msgspec.ValidationError, msgspec.DecodeError):
            names = ", ".join(sorted(given))
        raise InvalidArgument(
            f"the options {OPTION_PREFIX}… of a table are those that UnityCatalog.resolve gives; "
            f"these are not: {names}"
        )
