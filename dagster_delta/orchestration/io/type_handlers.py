"""The Python types that an input can be loaded as, by its annotation.

Types are told apart by the name of their package, so that no package is imported which the asset
itself does not use.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

from dagster_delta.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_delta.orchestration.change_feed.upstream_changes import UpstreamChanges
    from dagster_delta.table.delta_table import DeltaTable
    from dagster_delta.table.read.scan import Scan
    from dagster_delta.table.read.snapshot import Snapshot

__all__ = [
    "LOAD_TYPES",
    "LoadType",
    "TableInput",
    "load_input",
    "load_type_by_name",
    "load_type_of",
    "takes_none",
]


@dataclass(frozen=True, slots=True)
class TableInput:
    """What an input reads, opened but not yet read."""

    table: DeltaTable | None
    """None where changes are read."""
    scan: Scan | UpstreamChanges
    """The columns and partitions that the input asked for."""
    spark: Callable[[], SparkSession]
    """Starts or gets the Spark session; called only for inputs that are Spark's."""


@dataclass(frozen=True, slots=True)
class LoadType:
    """One type that an input can be loaded as."""

    name: str
    """What `default_load_type` calls it."""
    package: str
    class_name: str
    load: Callable[[TableInput], Any]

    @property
    def annotation(self) -> str:
        """How it is written as an annotation."""
        return f"{self.package}.{self.class_name}"


def _snapshot(table_input: TableInput) -> Snapshot:
    return table_input.scan.snapshot


LOAD_TYPES: tuple[LoadType, ...] = (
    LoadType("pyspark", "pyspark", "DataFrame", lambda i: i.scan.to_spark(i.spark())),
    LoadType("pyarrow", "pyarrow", "Table", lambda i: i.scan.to_arrow()),
    LoadType("pyarrow_reader", "pyarrow", "RecordBatchReader", lambda i: i.scan.to_batches()),
    LoadType("pandas", "pandas", "DataFrame", lambda i: i.scan.to_pandas()),
    LoadType("polars", "polars", "DataFrame", lambda i: i.scan.to_polars()),
    LoadType("polars_lazy", "polars", "LazyFrame", lambda i: i.scan.to_polars().lazy()),
    LoadType("delta_table", "dagster_delta", "DeltaTable", lambda i: i.table),
    LoadType("snapshot", "dagster_delta", "Snapshot", _snapshot),
    LoadType("scan", "dagster_delta", "Scan", lambda i: i.scan),
)
"""Everything an input can be. A `DeltaTable` or a `Snapshot` is the whole table, whatever partition
is being read; a `Scan` is just what the input asked for, read when its own methods are called."""


def load_type_of(annotation: Any, default: str | None, *, name: str) -> LoadType:
    """The type to load an input as.

    Args:
        annotation: type of the input; `Any` where it has none.
        default: the `default_load_type` for inputs without annotation.
        name: of the input, for error messages.

    Raises:
        InvalidArgument: the type is none of ours, or there is neither annotation nor default.
    """
    if annotation is Any or annotation is None:
        if default is None:
            raise InvalidArgument(
                f"the input {name!r} has no type annotation: annotate it with one of "
                f"{_annotations()}, or set default_load_type on the DeltaIOManager to one of "
                f"{', '.join(each.name for each in LOAD_TYPES)}"
            )
        return load_type_by_name(default)
    wanted = _without_none(annotation)
    package = getattr(wanted, "__module__", "").partition(".")[0]
    class_name = getattr(wanted, "__name__", "")
    for each in LOAD_TYPES:
        if (package, class_name) == (each.package, each.class_name):
            return each
    raise InvalidArgument(
        f"the input {name!r} is annotated with {wanted}, and a Delta table can be loaded as "
        f"one of {_annotations()}"
    )


def load_type_by_name(name: str) -> LoadType:
    """The type that `default_load_type` calls by this name.

    Raises:
        InvalidArgument: there is none.
    """
    for each in LOAD_TYPES:
        if each.name == name:
            return each
    raise InvalidArgument(
        f"default_load_type is one of {', '.join(each.name for each in LOAD_TYPES)}, not {name!r}"
    )


def load_input(load_type: LoadType, table_input: TableInput) -> Any:
    """The input, as that type.

    Raises:
        InvalidArgument: the package of the type is not installed.
    """
    try:
        return load_type.load(table_input)
    except ModuleNotFoundError as error:
        if error.name != load_type.package:
            raise
        raise InvalidArgument(
            f"loading an input as {load_type.annotation} needs the package {load_type.package}, "
            f"which is not installed: pip install {load_type.package}"
        ) from error


def _annotations() -> str:
    return ", ".join(each.annotation for each in LOAD_TYPES)


def takes_none(annotation: Any) -> bool:
    """Whether an annotation is `T | None`: what is not there yet is loaded as None.

    Args:
        annotation: type of the input.
    """
    if get_origin(annotation) not in {Union, types.UnionType}:
        return False
    return type(None) in get_args(annotation)


def _without_none(annotation: Any) -> Any:
    """`T` of `T | None`."""
    if get_origin(annotation) in {Union, types.UnionType}:
        rest = [each for each in get_args(annotation) if each is not type(None)]
        if len(rest) == 1:
            return rest[0]
    return annotation
