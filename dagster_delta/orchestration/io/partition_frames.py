"""One frame per partition key, returned by an asset, as the rows of one write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.errors import InvalidArgument, PartitionMismatch, SchemaMismatch
from dagster_delta.orchestration.metadata_keys import first_names
from dagster_delta.orchestration.partitions.partitions import PartitionSelection
from dagster_delta.orchestration.partitions.predicates import partition_condition
from dagster_delta.protocol.schema import StructType
from dagster_delta.protocol.values.arrow_schema import from_arrow_schema, to_arrow_schema

_MAX_EXAMPLES = 3


class FrameMismatch(PartitionMismatch):
    """A row of a frame is outside the partition of the frame."""


@dataclass(frozen=True, slots=True)
class PartitionFrames:
    """One frame per partition key of a run."""

    asset: str
    """Name of the asset, for messages."""
    frames: Mapping[str, object]
    """The rows of each partition, in any form that can be written; None if the partition does not
    change."""
    select: Callable[[Sequence[str]], PartitionSelection]
    """The partitions of some of the keys."""

    @property
    def written_keys(self) -> tuple[str, ...]:
        """The keys that have a frame."""
        return tuple(key for key, frame in self.frames.items() if frame is not None)

    def check_keys(self, selection: PartitionSelection | None) -> None:
        """Make sure that there is a frame, or None, for each partition of the run."""
        if selection is None:
            raise InvalidArgument(
                f"{self.asset} returned a dict, which is for one frame per partition key, and "
                f"{self.asset} is not partitioned: return one frame; pyarrow.table makes one of a "
                "mapping from column to values"
            )
        run_keys, run = selection.keys, first_names(selection.keys)
        if others := [key for key in self.frames if key not in run_keys]:
            raise InvalidArgument(
                f"{self.asset} returned frames for {first_names(others)}, which are not partitions "
                f"of the run: return one for each of {run} (context.partition_keys)"
            )
        if missing := [key for key in run_keys if key not in self.frames]:
            raise InvalidArgument(
                f"{self.asset} returned no frame for {first_names(missing)}, of the partitions "
                f"{run} of the run: return an empty frame to have no rows in a partition, or None "
                "to leave it as it is"
            )

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows of all frames as a `pa.RecordBatchReader`; frames are read one at a time, and
        each row is checked, when it is read, to be in the frame's partition.
        """
        from dagster_delta.parquet.data_input import to_reader

        readers = {}
        for key in self.written_keys:
            if type(self.frames[key]).__module__.startswith("pyspark."):
                raise InvalidArgument(
                    f"{self.asset} returned a Spark frame for {key}: return one Spark frame with "
                    "the rows of all partitions of the run"
                )
            readers[key] = to_reader(self.frames[key])
        schema = self._schema({key: reader.schema for key, reader in readers.items()})
        batches = self._batches(readers, schema)
        return pa.RecordBatchReader.from_batches(to_arrow_schema(schema), batches)

    def _schema(self, schemas: Mapping[str, pa.Schema]) -> StructType:
        # An empty frame may have no columns.
        known = {key: schema for key, schema in schemas.items() if len(schema)}
        if not known:
            return StructType(())
        first, *others = known
        for key in others:
            if differing := set(known[first].names) ^ set(known[key].names):
                raise SchemaMismatch(
                    f"{self.asset} returned frames with different columns: "
                    f"{', '.join(sorted(differing))} is in one of {first} and {key} only"
                )
        try:
            # The type that holds the values of all types.
            joined = pa.unify_schemas(list(known.values()), promote_options="permissive")
        except pa.ArrowException as error:
            raise SchemaMismatch(
                f"{self.asset} returned frames whose columns have different types: {error}"
            ) from error
        for key, schema in known.items():
            for field in schema:
                self._check_conversion(key, field, joined.field(field.name).type)
        return from_arrow_schema(joined)

    def _check_conversion(self, key: str, field: pa.Field, joined: pa.DataType) -> None:
        """Refuse a type whose values floating point numbers would round; the values of whole
        columns are checked later.
        """
        if _is_wide_integer(field.type) and pa.types.is_floating(joined):
            return
        if _rounds(field.type, joined):
            raise SchemaMismatch(
                f"{self.asset} returned a frame for {key} whose column {field.name} has the type "
                f"{field.type}, and a frame with {joined}, which would round its values: cast "
                "the column to one type in all frames",
                column=field.name,
            )

    def _batches(
        self, readers: Mapping[str, pa.RecordBatchReader], schema: StructType
    ) -> Iterator[pa.RecordBatch]:
        from dagster_delta.engines.statements.constraint_check import python_rows
        from dagster_delta.parquet.store_assignment import assign_batches
        from dagster_delta.sql.evaluation import evaluate_filter

        for key, reader in readers.items():
            if not len(reader.schema):
                continue
            condition = partition_condition(self.select([key]), schema)
            exact = self._exact(key, reader, to_arrow_schema(schema))
            for batch in assign_batches(exact, schema, table=f"the frame of {key}"):
                inside = pc.fill_null(evaluate_filter(condition, batch), fill_value=False)
                if not pc.all(inside, min_count=0).as_py():
                    outside = batch.filter(pc.invert(inside)).slice(0, _MAX_EXAMPLES)
                    raise FrameMismatch(
                        f"{self.asset} returned rows for the partition {key} that are not in it, "
                        f"as {condition.sql} does not hold for them",
                        examples=tuple(repr(row) for row in python_rows(outside)),
                    )
                yield batch

    def _exact(
        self, key: str, reader: pa.RecordBatchReader, joined: pa.Schema
    ) -> pa.RecordBatchReader:
        """The frame, with an error for integers that its floating point columns would round."""
        names = [
            field.name
            for field in reader.schema
            if _is_wide_integer(field.type) and pa.types.is_floating(joined.field(field.name).type)
        ]
        if not names:
            return reader

        def checked() -> Iterator[pa.RecordBatch]:
            for batch in reader:
                for name in names:
                    try:
                        batch.column(name).cast(joined.field(name).type)
                    except pa.ArrowInvalid as error:
                        raise SchemaMismatch(
                            f"{self.asset} returned a frame for {key} with integers in the column "
                            f"{name}, and a frame with {joined.field(name).type}, as pandas has "
                            f"for integers with nulls, which would round them: {error}; cast the "
                            "column to one type in all frames",
                            column=name,
                        ) from error
                yield batch

        return pa.RecordBatchReader.from_batches(reader.schema, checked())


def _is_wide_integer(kind: pa.DataType) -> bool:
    return kind in (pa.int64(), pa.uint64())


def _rounds(kind: pa.DataType, joined: pa.DataType) -> bool:
    """Whether the type that frames are joined in has floating point numbers for decimals or long
    integers, at any depth.
    """
    if pa.types.is_floating(joined):
        return _is_wide_integer(kind) or bool(pa.types.is_decimal(kind))
    if not pa.types.is_nested(kind) or not pa.types.is_nested(joined):
        return False
    if pa.types.is_struct(kind):
        fields = [(each.type, joined.field(each.name).type) for each in kind]
    else:
        fields = [
            (kind.field(index).type, joined.field(index).type) for index in range(kind.num_fields)
        ]
    return any(_rounds(*field) for field in fields)
