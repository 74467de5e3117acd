"""The Python types that inputs are loaded as, and that assets return, each by its handler.

Types of other packages are compared by name, so that only packages that the asset uses are
imported.
"""

from __future__ import annotations

import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Union, get_args, get_origin

import msgspec
from dagster import DagsterType
from msgspec.structs import replace

from dagster_delta.errors import InvalidArgument
from dagster_delta.table.read.scan import Scan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_delta.table.delta_table import DeltaTable

T = TypeVar("T")

# The type of inputs that are loaded as scans. Its values are not checked, so that a unit test may
# give other ones.
SCAN_INPUT = DagsterType(lambda _, __: True, name="DeltaScan", typing_type=Scan)


class TableInput(msgspec.Struct, frozen=True):
    """The data of an input, opened but not yet read."""

    table: DeltaTable | None
    """The whole table; None if changes are read."""
    scan: Scan
    """The columns, rows and partitions of the input; UpstreamChanges if changes are read, which has
    the same methods."""
    spark: Callable[[], SparkSession]
    """Starts or gets the Spark session; called only for Spark inputs."""
    scans_by_partition: Callable[[], Mapping[str, Scan]] | None = None
    """Makes a scan for each partition key of the input; None if it is not partitioned."""


class TypeHandler(ABC, Generic[T]):
    """Loads values of a Python type from Delta tables, and writes them.

    A subclass of the DeltaIOManager adds handlers in `type_handlers`. They take precedence over
    those of this package, so that they can override how a type is loaded.

    Examples:
        @dataclass
        class Plane:
            tailnum: str
            seats: int

        class Planes(TypeHandler[list[Plane]]):
            supported_types = (list[Plane],)

            def load(self, table_input: TableInput) -> list[Plane]:
                return [Plane(**row) for row in table_input.scan.to_arrow().to_pylist()]

            def to_arrow(self, value: list[Plane]) -> pa.Table:
                return pa.Table.from_pylist([asdict(plane) for plane in value], SCHEMA)

        class LakeIOManager(DeltaIOManager):
            @staticmethod
            def type_handlers() -> Sequence[TypeHandler]:
                return [Planes()]
    """

    name: str | None = None
    """Its name in `default_load_type`; None if only annotations select it."""

    @property
    @abstractmethod
    def supported_types(self) -> Sequence[object]:
        """The annotations of inputs and outputs that it handles: a class, a generic type such as
        `list[Plane]`, or the name of a class as `package.ClassName`, which imports nothing.

        Outputs without annotation are matched by the class of their value.
        """

    @abstractmethod
    def load(self, table_input: TableInput) -> T:
        """The value of an input.

        Args:
            table_input: what to read; `table_input.scan` has the columns, the filter and the
                partitions of the input, and reads when one of its methods is called.
        """

    def to_arrow(self, value: T) -> object:
        """The rows of a value, as anything that `DeltaTable.append` takes: a `pa.Table`, or for
        bounded memory a `pa.RecordBatchReader`. By default, the value itself.

        Args:
            value: returned by an asset.
        """
        return value


class _TableType(TypeHandler[Any]):
    """A type that one call loads from a table. Values are written unchanged."""

    supported_types: tuple[str, ...] = ()

    def __init__(
        self, name: str, supported_type: str, load: Callable[[TableInput], object]
    ) -> None:
        self.name = name
        self.supported_types = (supported_type,)
        self._load = load

    def load(self, table_input: TableInput) -> object:
        return self._load(table_input)


class _FramesByPartition(TypeHandler[dict[str, Any]]):
    """`dict[str, T]`: a value of another handler for each partition key of the input."""

    supported_types: tuple[str, ...] = ()

    def __init__(self, frames: TypeHandler[Any]) -> None:
        self._frames = frames
        self.supported_types = (f"dict[str, {annotation_of(frames)}]",)

    def load(self, table_input: TableInput) -> dict[str, object]:
        if table_input.scans_by_partition is None:
            raise InvalidArgument(
                f"the annotation {self.supported_types[0]} is for one value per partition key, and "
                f"the input is not partitioned: annotate it with {annotation_of(self._frames)}"
            )
        return {
            key: self._frames.load(replace(table_input, scan=scan))
            for key, scan in table_input.scans_by_partition().items()
        }


def _narwhals_frame(table_input: TableInput) -> object:
    import narwhals

    return narwhals.from_native(table_input.scan.to_arrow(), eager_only=True)


TABLE_TYPES: tuple[TypeHandler[Any], ...] = (
    _TableType("pyspark", "pyspark.DataFrame", lambda i: i.scan.to_spark(i.spark())),
    _TableType("pyarrow", "pyarrow.Table", lambda i: i.scan.to_arrow()),
    _TableType("pyarrow_reader", "pyarrow.RecordBatchReader", lambda i: i.scan.to_batches()),
    _TableType("pandas", "pandas.DataFrame", lambda i: i.scan.to_pandas()),
    _TableType("polars", "polars.DataFrame", lambda i: i.scan.to_polars()),
    _TableType("polars_lazy", "polars.LazyFrame", lambda i: i.scan.to_polars_lazy()),
    _TableType("narwhals", "narwhals.DataFrame", _narwhals_frame),
    _TableType("duckdb", "duckdb.DuckDBPyRelation", lambda i: i.scan.to_duckdb()),
    _TableType("delta_table", "dagster_delta.DeltaTable", lambda i: i.table),
    _TableType("snapshot", "dagster_delta.Snapshot", lambda i: i.scan.snapshot),
    _TableType("scan", "dagster_delta.Scan", lambda i: i.scan),
)
"""Load types of every input. A `DeltaTable` or a `Snapshot` is the whole table, also for a
partitioned read; a `Scan` has the columns, rows and partitions of the input, and reads when its
methods are called."""


OPENED_ONLY = frozenset({"delta_table", "snapshot", "scan"})
"""Load types that read nothing by themselves."""


def type_handler_of(
    annotation: object,
    default: str | None,
    *,
    name: str,
    handlers: Sequence[TypeHandler[Any]] = TABLE_TYPES,
) -> TypeHandler[Any]:
    """The handler that loads an input."""
    if annotation is Any or annotation is None:
        if default is None:
            raise InvalidArgument(
                f"the input {name!r} has no type annotation, or `list` alone: annotate it with one "
                f"of {_list_annotations(handlers)}, or set default_load_type on the "
                f"DeltaIOManager to one of {', '.join(_list_names(handlers))}"
            )
        return handler_named(default, handlers)
    wanted = without_none(annotation)
    for handler in handlers:
        if any(_is_type(wanted, supported) for supported in handler.supported_types):
            return handler
    if get_origin(wanted) is list:
        # Of several outputs, which Dagster loads one by one.
        return type_handler_of(get_args(wanted)[0], None, name=name, handlers=handlers)
    if (frame := _frame_of(wanted)) is not None:
        return _FramesByPartition(type_handler_of(frame, None, name=name, handlers=handlers))
    raise InvalidArgument(
        f"the input {name!r} is annotated with {wanted}, and a Delta table can be loaded as "
        f"one of {_list_annotations(handlers)}, or as dict[str, …] of one, by partition key; a "
        "TypeHandler in type_handlers of the IO manager adds a type"
    )


def rows_to_write(
    value: object, annotation: object, handlers: Sequence[TypeHandler[Any]]
) -> object:
    """The rows that an asset returned, in a form that can be written; for `dict[str, T]` by key,
    and None remains None. The first of the further handlers that supports the annotation, or else
    the class of the value, converts it; the types of this package are written as they are.
    """
    if value is None:
        return None
    wanted = without_none(annotation)
    for matches, given in ((_is_type, wanted), (_is_instance, value)):
        for handler in handlers:
            if any(matches(given, supported) for supported in handler.supported_types):
                return handler.to_arrow(value)
    if isinstance(value, dict) and (frame := _frame_of(wanted)) is not None:
        return {key: rows_to_write(rows, frame, handlers) for key, rows in value.items()}
    return value


def annotation_of(handler: TypeHandler[Any]) -> str:
    """The first type of a handler, as in an annotation."""
    return _spell_type(handler.supported_types[0])


def takes_none(annotation: object) -> bool:
    """Whether an annotation is `T | None`: a missing table is loaded as None."""
    return without_none(annotation) is not annotation


def without_none(annotation: object) -> object:
    """`T` of `T | None`; any other annotation unchanged."""
    if get_origin(annotation) in {Union, types.UnionType}:
        rest = [part for part in get_args(annotation) if part is not type(None)]
        if len(rest) == 1:
            return rest[0]
    return annotation


def handler_named(name: str, handlers: Sequence[TypeHandler[Any]]) -> TypeHandler[Any]:
    """The handler with a name in `default_load_type`."""
    for handler in handlers:
        if handler.name == name:
            return handler
    raise InvalidArgument(
        f"default_load_type is one of {', '.join(_list_names(handlers))}, not {name!r}"
    )


def _frame_of(annotation: object) -> object:
    """`T` of `dict[str, T]` and `dict[str, T | None]`; None for other annotations."""
    if get_origin(annotation) is not dict or get_args(annotation)[0] is not str:
        return None
    return without_none(get_args(annotation)[1])


def _list_names(handlers: Sequence[TypeHandler[Any]]) -> list[str]:
    return [handler.name for handler in handlers if handler.name is not None]


def _list_annotations(handlers: Sequence[TypeHandler[Any]]) -> str:
    return ", ".join(_spell_type(kind) for handler in handlers for kind in handler.supported_types)


def _spell_type(supported: object) -> str:
    if isinstance(supported, type) and get_origin(supported) is None:
        return f"{supported.__module__.partition('.')[0]}.{supported.__qualname__}"
    return str(supported)


def _is_type(annotation: object, supported: object) -> bool:
    """Whether an annotation is a supported type. Dagster gives `typing.List[T]` for `list[T]`."""
    if isinstance(supported, str):
        return _qualify_name(annotation) == supported
    if get_origin(supported) is None or get_origin(annotation) is None:
        return bool(annotation == supported)
    arguments, wanted = get_args(annotation), get_args(supported)
    return (
        get_origin(annotation) == get_origin(supported)
        and len(arguments) == len(wanted)
        and all(map(_is_type, arguments, wanted))
    )


def _is_instance(value: object, supported: object) -> bool:
    if isinstance(supported, str):
        return any(_qualify_name(parent) == supported for parent in type(value).__mro__)
    return (
        isinstance(supported, type)
        and get_origin(supported) is None
        and isinstance(value, supported)
    )


def _qualify_name(annotation: object) -> str:
    """`package.ClassName`: classes are defined in submodules that users do not name."""
    package = getattr(annotation, "__module__", "").partition(".")[0]
    return f"{package}.{getattr(annotation, '__name__', '')}"
