"""Chooses the encoding of each Parquet column from a sample of its values.

A dictionary saves space only if values repeat; other numbers and times are stored as differences.
Every encoding chosen here is read by Spark's vectorized reader.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.parquet.nested_arrays import list_elements, map_entries
from dagster_delta.protocol.checkpoint.parquet_reader import decoding_pool

SAMPLE_ROWS = 64_000
_SAMPLE_BYTES = 64 * 1024 * 1024

_REPRESENTATIVE_ROWS = 8_000
"""Rows of one file that are enough to choose the encodings of other files."""
_SMALL_FILES = 9
"""Files with fewer rows that are enough."""
_MAX_DISTINCT_SHARE = 0.25
"""Share of distinct values in the sample up to which a dictionary pays."""


class ColumnEncodings(msgspec.Struct, frozen=True):
    """The encoding of each Parquet column by its dotted path; columns in neither are plain."""

    dictionary: tuple[str, ...]
    delta_packed: tuple[str, ...]


PLAIN = ColumnEncodings((), ())
"""Every column plain."""


class _Leaf(msgspec.Struct):
    """What is known of a Parquet column of files of about the same size."""

    is_packable: bool
    num_files: int = 0
    """Files that were examined and have a value in the column."""
    num_repeating: int = 0
    """Those of them in which a dictionary pays."""

    def examine(self, values: pa.Array) -> bool:
        """Whether a dictionary pays for the values of one file."""
        pays = _pays_as_dictionary(values)
        if values.null_count < len(values):
            self.num_files += 1
            self.num_repeating += pays
        return pays


class SharedEncodings:
    """Chooses the encodings of all files of one write; threads may share it.

    Examining a sample costs as much as writing it, so the first files of about the same size decide
    for the others: values rare in one partition seldom repeat in the next. Of small files, the
    majority of several decides, as one of them may happen to have a single value in a column.
    """

    def __init__(self) -> None:
        self._columns: dict[tuple[str, int], dict[str, _Leaf]] = {}

    def choose(self, rows: pa.Table) -> ColumnEncodings:
        """Encodings for a file that starts with `rows`.

        `rows`: a `pyarrow.Table` in the file's schema; only the first `SAMPLE_ROWS` are used.
        """
        is_small = rows.num_rows < _REPRESENTATIVE_ROWS
        size, enough = (rows.num_rows.bit_length(), _SMALL_FILES) if is_small else (0, 1)
        dictionary: list[str] = []
        delta_packed: list[str] = []
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            leaves = self._columns.get((name, size))
            pays: dict[str, bool] = {}
            if leaves is None or any(leaf.num_files < enough for leaf in leaves.values()):
                values = dict(leaf_arrays(name, _sample(column)))
                new = {path: _Leaf(_is_packable(each.type)) for path, each in values.items()}
                leaves = self._columns.setdefault((name, size), new)
                pays = {path: leaves[path].examine(each) for path, each in values.items()}
            for path, leaf in leaves.items():
                if pays.get(path, leaf.num_repeating * 2 > leaf.num_files):
                    dictionary.append(path)
                elif leaf.is_packable:
                    delta_packed.append(path)
        return ColumnEncodings(tuple(dictionary), tuple(delta_packed))


def _sample(column: pa.ChunkedArray) -> pa.Array:
    sample = column.slice(0, SAMPLE_ROWS)
    if sample.num_chunks == 1:
        return sample.chunk(0)
    if sample.nbytes > _SAMPLE_BYTES:
        # They are copied, and texts in one array must stay below 2 GiB.
        sample = sample.slice(0, max(1, len(sample) * _SAMPLE_BYTES // sample.nbytes))
    return sample.combine_chunks(decoding_pool())


def leaf_arrays(path: str, array: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """Parquet columns under their paths. Spec of the paths: Parquet's nested types."""
    if pa.types.is_struct(array.type):
        for field, child in zip(array.type, array.flatten(), strict=True):
            yield from leaf_arrays(f"{path}.{field.name}", child)
    elif pa.types.is_map(array.type):
        keys, values = map_entries(array)
        yield from leaf_arrays(f"{path}.key_value.key", keys)
        yield from leaf_arrays(f"{path}.key_value.value", values)
    elif pa.types.is_list(array.type):
        yield from leaf_arrays(f"{path}.list.element", list_elements(array))
    else:
        yield path, array


def _pays_as_dictionary(values: pa.Array) -> bool:
    if pa.types.is_boolean(values.type):
        return False
    count = len(values) - values.null_count
    if not count:
        return True
    distinct = pc.call_function("count_distinct", [values], memory_pool=decoding_pool())
    return bool(distinct.as_py() <= max(1, count * _MAX_DISTINCT_SHARE))


def _is_packable(arrow_type: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_integer(arrow_type)
        or types.is_timestamp(arrow_type)
        or types.is_date32(arrow_type)
    )
