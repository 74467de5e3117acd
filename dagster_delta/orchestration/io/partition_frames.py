"""One frame per partition key, returned by an asset, as the rows of one write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

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
from dagster_delta.orchestration.partitions.partitions import PartitionSelection
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

    asset: str
    """Name of the asset, for messages."""
    frames: Mapping[str, object]
    """The rows of each partition, in any form that can be written; None if the partition does not
    change."""
    select: Callable[[Sequence[str]], PartitionSelection]
    """The partitions of some of the keys."""

    rows = None

    def write(self, write: AssetWrite) -> WrittenAsset | NothingWritten:
        """Write the rows of all frames as one commit."""
        self._check_keys(write.selection)
        frames = {key: frame for key, frame in self.frames.items() if frame is not None}
        if not frames:
            return NothingWritten(f"{self.asset} returned None for each partition")
        narrowed = replace(
            write, selection=self.select(tuple(frames)), run_selection=write.selection
        )
        return write_asset(narrowed, self._to_reader(frames))

    def _check_keys(self, selection: PartitionSelection | None) -> None:
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

    def _to_reader(self, frames: Mapping[str, object]) -> pa.RecordBatchReader:
        """The rows of all frames; frames are read one at a time, and each row is checked, when it
        is read, to be in the frame's partition.
        """
        readers = {}
        for key, frame in frames.items():
            if is_spark_frame(frame):
                raise InvalidArgument(
                    f"{self.asset} returned a Spark frame for {key}: return one Spark frame with "
                    "the rows of all partitions of the run"
                )
            readers[key] = to_reader(frame)
        schema = self._schema({key: reader.schema for key, reader in readers.items()})
        written = to_arrow_schema(from_arrow_schema(schema))
        return pa.RecordBatchReader.from_batches(written, self._batches(readers, schema))

    def _schema(self, schemas: Mapping[str, pa.Schema]) -> pa.Schema:
        # An empty frame may have no columns.
        known = {key: schema for key, schema in schemas.items() if len(schema)}
        if not known:
            return pa.schema([])
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
                kind = joined.field(field.name).type
                # Arrow rounds decimals without an error.
                if str(field.type).count("decimal") != str(kind).count("decimal"):
                    raise self._rounding(key, f"{field.name} has the type {field.type}")
        return joined

    def _batches(
        self, readers: Mapping[str, pa.RecordBatchReader], joined: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        schema = from_arrow_schema(joined)
        for key, reader in readers.items():
            if not len(reader.schema):
                continue
            condition = partition_condition(self.select([key]), schema)
            exact = self._exact(key, reader, joined)
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
        """The frame in the common types, with an error for values that would be rounded."""

        def cast() -> Iterator[pa.RecordBatch]:
            for batch in reader:
                try:
                    yield batch.select(joined.names).cast(joined)
                except pa.ArrowException as error:
                    raise self._rounding(key, str(error)) from error

        return pa.RecordBatchReader.from_batches(joined, cast())

    def _rounding(self, key: str, cause: str) -> SchemaMismatch:
        return SchemaMismatch(
            f"{self.asset} returned a frame for {key} with other types than the other frames, "
            f"which would round its values ({cause}): cast its columns to one type in all frames "
            "(pandas has floating point numbers for integers with nulls)"
        )
