"""Calls of a table handle that change its properties, features and protocol versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from dagster_delta.clock import now_ms
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.table.table_handle import TableHandle
from dagster_delta.table.transaction.commit_result import CommitResult


class SettingMethods(TableHandle):
    """Changes of the properties and protocol of a table; part of `DeltaTable`."""

    def set_properties(
        self,
        properties: Mapping[str, object],
        *,
        commit_info: Mapping[str, object] | None = None,
    ) -> CommitResult:
        """Set table properties, together with the protocol changes they need, in one commit.

        If the new feature needs it, a legacy protocol is replaced by lists of features, with all
        that it implied. `delta.enableRowTracking` gives ids to existing rows,
        `delta.columnMapping.mode = name` gives ids to the columns, and
        `delta.enableInCommitTimestamps` records when the timestamps began. If the table already has
        these properties, there is no commit, and `skipped` is true.

        Args:
            properties: values by name, text, numbers or booleans; `delta.*` names are checked,
                others are the user's own. `delta.feature.<name> = supported` enables a feature.
            commit_info: recorded in the commitInfo beside this library's own fields.

        Raises:
            TableNotFound: the table does not exist.
            InvalidArgument: a name is unknown or not for users, a value is invalid, or the table
                cannot change from its present state to that one.
            UnsupportedFeature, ConditionalPutUnsupported: the table cannot be written.
            CommitConflict, CommitStateUnknown: the commit failed, or may have failed.
        """
        from dagster_delta.evolution.properties import normalize_properties, set_properties

        return self._change(
            lambda now, new_name: set_properties(now, properties, new_name=new_name),
            "SET TBLPROPERTIES",
            {"properties": normalize_properties(properties)},
            commit_info,
        )

    def unset_properties(
        self,
        names: Iterable[str],
        *,
        if_exists: bool = False,
        commit_info: Mapping[str, object] | None = None,
    ) -> CommitResult:
        """Unset table properties; features that they needed stay in the protocol.

        Args:
            names: names of the properties.
            if_exists: whether a property that the table does not have is no error.
            commit_info: recorded in the commitInfo beside this library's own fields.

        Raises:
            InvalidArgument: the table does not have a property, a property is not for users, or the
                table needs it.
            TableNotFound, UnsupportedFeature, ConditionalPutUnsupported, CommitConflict,
            CommitStateUnknown: as for `set_properties`.
        """
        from dagster_delta.evolution.properties import unset_properties

        wanted = names if isinstance(names, str) else list(names)
        return self._change(
            lambda now, _: unset_properties(now, wanted, if_exists=if_exists),
            "UNSET TBLPROPERTIES",
            {"properties": wanted, "ifExists": if_exists},
            commit_info,
        )

    def set_name(
        self, name: str | None, *, commit_info: Mapping[str, object] | None = None
    ) -> CommitResult:
        """Set the name of the table that catalogs and tools show; its location stays.

        Args:
            name: the new name; None for none.
            commit_info: recorded in the commitInfo beside this library's own fields.

        Raises:
            TableNotFound, UnsupportedFeature, ConditionalPutUnsupported, CommitConflict,
            CommitStateUnknown: as for `set_properties`.
        """
        return self._change_metadata({"name": name}, commit_info)

    def set_description(
        self, description: str | None, *, commit_info: Mapping[str, object] | None = None
    ) -> CommitResult:
        """Set the description of the table that catalogs and tools show.

        Args:
            description: the new description; None for none.
            commit_info: recorded in the commitInfo beside this library's own fields.

        Raises:
            TableNotFound, UnsupportedFeature, ConditionalPutUnsupported, CommitConflict,
            CommitStateUnknown: as for `set_properties`.
        """
        return self._change_metadata({"description": description}, commit_info)

    def _change_metadata(
        self, fields: Mapping[str, str | None], commit_info: Mapping[str, object] | None
    ) -> CommitResult:
        def changed(now: TableConfiguration, _: object) -> TableConfiguration:
            metadata = msgspec.structs.replace(now.metadata, **fields)
            return TableConfiguration(now.protocol, metadata)

        return self._change(changed, "UPDATE TABLE METADATA", fields, commit_info)

    def enable_feature(
        self, name: str, *, commit_info: Mapping[str, object] | None = None
    ) -> CommitResult:
        """Add a table feature, and those it depends on, to the protocol.

        A feature with its own property (`delta.enableDeletionVectors`, …) is then supported but not
        yet in use: `set_properties` enables it.

        Args:
            name: name of the feature, as in `"domainMetadata"`.
            commit_info: recorded in the commitInfo beside this library's own fields.

        Raises:
            InvalidArgument: the feature is unknown.
            UnsupportedFeature: this library does not write tables with it.
            TableNotFound, ConditionalPutUnsupported, CommitConflict, CommitStateUnknown: as for
                `set_properties`.
        """
        from dagster_delta.evolution.properties import enable_feature

        return self._change(
            lambda now, new_name: enable_feature(now, name, new_name=new_name),
            "SET TBLPROPERTIES",
            {"properties": {f"delta.feature.{name}": "supported"}},
            commit_info,
        )

    def upgrade_protocol(
        self,
        *,
        min_reader_version: int = 1,
        min_writer_version: int = 1,
        commit_info: Mapping[str, object] | None = None,
    ) -> CommitResult:
        """Upgrade the protocol versions; writer version 7 lists the features that the old version
        implied.

        Args:
            min_reader_version: minimum reader version; the table's own may be higher.
            min_writer_version: minimum writer version; the table's own may be higher.
            commit_info: recorded in the commitInfo beside this library's own fields.

        Raises:
            InvalidArgument: the pair of versions does not exist.
            TableNotFound, UnsupportedFeature, ConditionalPutUnsupported, CommitConflict,
            CommitStateUnknown: as for `set_properties`.
        """
        from dagster_delta.evolution.properties import set_properties

        versions = {
            "delta.minReaderVersion": min_reader_version,
            "delta.minWriterVersion": min_writer_version,
        }
        return self._change(
            lambda now, new_name: set_properties(now, versions, new_name=new_name),
            "UPGRADE PROTOCOL",
            {
                "newProtocol": {
                    "minReaderVersion": min_reader_version,
                    "minWriterVersion": min_writer_version,
                }
            },
            commit_info,
        )

    def _change(
        self,
        plan: Callable[[TableConfiguration, Callable[[], str]], TableConfiguration],
        operation: str,
        parameters: Mapping[str, object],
        commit_info: Mapping[str, object] | None,
    ) -> CommitResult:
        from dagster_delta.table.operations.configuration_change import commit_configuration
        from dagster_delta.table.operations.write_planning import new_column_name

        snapshot = self._existing()
        return self._adopt(
            commit_configuration(
                snapshot,
                plan(snapshot.configuration, new_column_name),
                operation,
                parameters,
                clock=now_ms,
                commit_info=commit_info,
            )
        )
