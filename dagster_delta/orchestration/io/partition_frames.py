"""One frame per partition key, returned by an asset, as the rows of one write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.engines import is_spark_frame
from dagster_delta.errors import InvalidArgument, SchemaMismatch
from dagster_delta.orchestration.io.asset_writer import (
    AssetValue,
    AssetWrite,
    FrameMismatch,
    NothingWritten,
    WrittenAsset,
    write_asset,
)
from dagster_delta.orchestration.metadata_keys import first_names
from dagster_delta.orchestration.partitions.partitions import PartitionSelection, single_partitions
from dagster_delta.orchestration.partitions.predicates import partition_condition
from dagster_delta.parquet.data_input import to_reader
from dagster_delta.parquet.store_assignment import assign_batches
from dagster_delta.protocol.values.arrow_schema import from_arrow_schema, to_arrow_schema
from dagster_delta.protocol.values.arrow_values import python_rows
from dagster_delta.sql.evaluation import evaluate_filter

_MAX_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class PartitionFrames(AssetValue):
    """One frame per partition key of a run."""

    frames: Mapping[str, object]
    """The rows of each partition, in any form that can be written; None if the partition does not
    change."""

    rows = None

    def write(self, write: AssetWrite) -> WrittenAsset | NothingWritten:
        """Write the rows of all frames as one commit."""
        self._check_keys(write.name, write.selection)
        frames = {key: frame for key, frame in self.frames.items() if frame is not None}
        if not frames:
            return NothingWritten(f"{write.name} returned None for each partition")
        narrowed = write.narrowed(frames)
        return write_asset(narrowed, _to_reader(narrowed, frames))

    def _check_keys(self, asset: str, selection: PartitionSelection | None) -> None:
        """Make sure that there is a frame, or None, for each partition of the run."""
        if selection is None:
            raise InvalidArgument(
                f"{asset} returned a dict, which is for one frame per partition key, and {asset} "
                "is not partitioned: return one frame; pyarrow.table makes one of a mapping from "
                "column to values"
            )
        run_keys, run = selection.keys, first_names(selection.keys)
        if others := [key for key in self.frames if key not in run_keys]:
            raise InvalidArgument(
                f"{asset} returned frames for {first_names(others)}, which are not partitions of "
                f"the run: return one for each of {run} (context.partition_keys)"
            )
        if missing := [key for key in run_keys if key not in self.frames]:
            raise InvalidArgument(
                f"{asset} returned no frame for {first_names(missing)}, of the partitions {run} of "
                "the run: return an empty frame to have no rows in a partition, or None to leave "
                "it as it is"
            )


def _to_reader(write: AssetWrite, frames: Mapping[str, object]) -> pa.RecordBatchReader:
    """The rows of all frames; frames are read one at a time, and each row is checked, when it is
    read, to be in the frame's partition.
    """
    readers = {}
    for key, frame in frames.items():
        if is_spark_frame(frame):
            raise InvalidArgument(
                f"{write.name} returned a Spark frame for {key}: return one Spark frame with the "
                "rows of all partitions of the run"
            )
        readers[key] = to_reader(frame)
    # An empty frame may have no columns.
    readers = {key: reader for key, reader in readers.items() if len(reader.schema)}
    joined = _joined(write.name, {key: reader.schema for key, reader in readers.items()})
    schema = from_arrow_schema(joined)
    partitions = single_partitions(write.selection)

    def batches() -> Iterator[pa.RecordBatch]:
        for key, reader in readers.items():
            condition = partition_condition(partitions[key], schema)
            exact = _exact(write.name, key, reader, joined)
            for batch in assign_batches(exact, schema, table=f"the frame of {key}"):
                inside = pc.fill_null(evaluate_filter(condition, batch), fill_value=False)
                if not pc.all(inside, min_count=0).as_py():
                    outside = batch.filter(pc.invert(inside)).slice(0, _MAX_EXAMPLES)
                    raise FrameMismatch(
                        f"{write.name} returned rows for the partition {key} that are not in it, "
                        f"as {condition.sql} does not hold for them",
                        examples=tuple(repr(row) for row in python_rows(outside)),
                    )
                yield batch

    return pa.RecordBatchReader.from_batches(to_arrow_schema(schema), batches())


def _joined(asset: str, schemas: Mapping[str, pa.Schema]) -> pa.Schema:
    """The columns of all frames, with types that hold the values of each."""
    for key, schema in schemas.items():
        first = next(iter(schemas))
        if differing := set(schemas[first].names) ^ set(schema.names):
            raise SchemaMismatch(
                f"{asset} returned frames with different columns: {', '.join(sorted(differing))} "
                f"is in one of {first} and {key} only"
            )
    try:
        joined = pa.unify_schemas([pa.schema([]), *schemas.values()], promote_options="permissive")
    except pa.ArrowException as error:
        raise SchemaMismatch(
            f"{asset} returned frames whose columns have different types: {error}"
        ) from error
    for key, schema in schemas.items():
        for field in schema:
            kind = joined.field(field.name).type
            # Arrow rounds decimals without an error.
            if str(field.type).count("decimal") != str(kind).count("decimal"):
                raise _rounding(asset, key, f"{field.name} has the type {field.type}")
    return joined


def _exact(
    asset: str, key: str, reader: pa.RecordBatchReader, joined: pa.Schema
) -> pa.RecordBatchReader:
    """The frame in the common types, with an error for values that would be rounded."""

    def cast() -> Iterator[pa.RecordBatch]:
        for batch in reader:
            try:
                yield batch.select(joined.names).cast(joined)
            except pa.ArrowException as error:
                raise _rounding(asset, key, str(error)) from error

    return pa.RecordBatchReader.from_batches(joined, cast())


def _rounding(asset: str, key: str, cause: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"{asset} returned a frame for {key} with other types than the other frames, which would "
        f"round its values ({cause}): cast its columns to one type in all frames (pandas has "
        "floating point numbers for integers with nulls)"
    )
