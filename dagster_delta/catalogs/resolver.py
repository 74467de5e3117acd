"""The port through which a catalog finds tables: a name becomes a location and its options."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from dagster_delta.storage import StoreLocation


@runtime_checkable
class TableResolver(Protocol):
    """A catalog in which tables have names."""

    def resolve(self, name: str) -> StoreLocation:
        """Where the table is, and the options to open it with.

        Args:
            name: of the table, as the catalog spells it, for example `main.shop.orders`.

        Raises:
            TableNotFound: the catalog has no such table.
            StorageFailure: the catalog refused or failed.
        """


@runtime_checkable
class CreatingResolver(TableResolver, Protocol):
    """Optional part of a resolver: prepares the location of a new table."""

    def new_table(self, name: str, location: str | None = None) -> StoreLocation:
        """Where a new table of the name is to be created. The first commit there, for example by
        `DeltaTable.create` or an append, registers it.

        Args:
            name: of the new table.
            location: URI of an external table; None for a table that the catalog manages.

        Raises:
            TableAlreadyExists: the catalog has a table of the name.
            StorageFailure: the catalog refused or failed.
        """
