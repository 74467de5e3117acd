"""One frame per partition key, returned by an asset, as the rows of one write."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.errors import InvalidArgument, PartitionMismatch, SchemaMismatch
from dagster_delta.orchestration.metadata_keys import first_names
from dagster_delta.orchestration.partitions.partitions import PartitionSelection
from dagster_delta.orchestration.partitions.predicates import partition_predicate
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
        from dagster_delta.engines.values.data_input import to_reader

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
        return from_arrow_schema(joined)

    def _batches(
        self, readers: Mapping[str, pa.RecordBatchReader], schema: StructType
    ) -> Iterator[pa.RecordBatch]:
        from dagster_delta.engines.expressions.constraint_check import python_rows
        from dagster_delta.engines.expressions.evaluation import evaluate_filter
        from dagster_delta.engines.values.store_assignment import assign_batches
        from dagster_delta.sql.filters import parse_filter

        for key, reader in readers.items():
            if not len(reader.schema):
                continue
            predicate = partition_predicate(self.select([key]), schema)
            condition = parse_filter(predicate, schema, dt.datetime.now(dt.UTC))
            for batch in assign_batches(reader, schema, table=f"the frame of {key}"):
                inside = pc.fill_null(evaluate_filter(condition, batch), fill_value=False)
                if not pc.all(inside, min_count=0).as_py():
                    outside = batch.filter(pc.invert(inside)).slice(0, _MAX_EXAMPLES)
                    raise FrameMismatch(
                        f"{self.asset} returned rows for the partition {key} that are not in it, "
                        f"as {predicate} does not hold for them",
                        examples=tuple(repr(row) for row in python_rows(outside)),
                    )
                yield batch
