"""Descriptions of an asset and its columns, written to its table, where catalogs and other programs
show them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import dagster as dg

from dagster_delta.errors import DeltaError
from dagster_delta.orchestration.io.asset_writer import AssetWrite
from dagster_delta.table.delta_table import DeltaTable

_COLUMNS_KEY = "dagster/column_schema"


def column_comments(metadata: Mapping[str, object]) -> dict[str, str]:
    """The descriptions of columns in the metadata `dagster/column_schema` of an asset, by name."""
    given = metadata.get(_COLUMNS_KEY)
    schema = getattr(given, "schema", given)
    columns = schema.columns if isinstance(schema, dg.TableSchema) else ()
    return {column.name: column.description for column in columns if column.description}


def update_descriptions(write: AssetWrite, comments: Mapping[str, str]) -> Iterator[str]:
    """Make the description of the table, and the comments of its columns, those of the asset. What
    the asset does not describe stays.

    The rows are committed before, so that a failure is a warning, which is returned: a repeated run
    would write them again.
    """
    try:
        table = DeltaTable(write.uri, storage_options=write.storage_options)
        if write.description not in (None, table.metadata().description):
            table.set_description(write.description, commit_info=write.commit_info)
        wanted = {name.lower(): comment for name, comment in comments.items()}
        for field in table.schema():
            comment = wanted.pop(field.name.lower(), field.comment)
            if comment != field.comment:
                table.set_comment([field.name], comment, commit_info=write.commit_info)
        if wanted:
            yield (
                f"{write.name} describes columns that its table does not have: "
                f"{', '.join(sorted(wanted))}"
            )
    except (DeltaError, OSError) as error:
        yield f"the descriptions of {write.name} were not written to its table: {error}"
