"""How callers spell the columns, types and conditions of tables."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import pyarrow as pa

from dagster_delta.evolution.plan_report import table_cell as table_cell
from dagster_delta.protocol.schema import StructType
from dagster_delta.protocol.table_properties import parse_interval_ms
from dagster_delta.protocol.values.arrow_schema import from_arrow_schema, to_arrow_schema
from dagster_delta.sql.typed import quote as quote
from dagster_delta.sql.types import sql_type_name as sql_type_name


def schema_of(columns: StructType | pa.Schema | Mapping[str, str]) -> StructType:
    """The logical schema of columns: their types in SQL by name, or a schema of Arrow.

    Raises:
        InvalidArgument: a type in SQL is unknown.
        SchemaMismatch: a type of Arrow is of no Delta type.
    """
    if isinstance(columns, StructType):
        return columns
    if isinstance(columns, pa.Schema):
        return from_arrow_schema(columns)
    # Imported late, as below: it loads the parser.
    from dagster_delta.evolution.column_definition import schema_of_types

    return schema_of_types(columns)


def arrow_schema_of(columns: StructType | Mapping[str, str]) -> pa.Schema:
    """The `pa.Schema` in which rows with these columns are read. Raises as `schema_of` does."""
    return to_arrow_schema(schema_of(columns))


def check_syntax(sql: str) -> None:
    """Check that a text may be an expression of Spark SQL; Spark may know what is outside of the
    grammar known here.

    Raises:
        InvalidArgument: it cannot be one.
    """
    from dagster_delta.sql.parser import parse_syntax
    from dagster_delta.sql.tokens import GrammarUnknown

    try:
        parse_syntax(sql)
    except GrammarUnknown:
        return


def parse_age(text: str) -> timedelta:
    """The length of an interval such as `90 days`, as table properties spell it.

    Raises:
        InvalidArgument: it is none, or in months or years.
    """
    return timedelta(milliseconds=parse_interval_ms(text))
