"""The rows of a polars LazyFrame, batch by batch while its query runs."""

from __future__ import annotations

from collections.abc import Iterator
from queue import Queue
from threading import Event, Thread
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    import polars as pl

__all__ = ["collected_rows"]

_MAX_WAITING_FRAMES = 1


def collected_rows(lazy_frame: pl.LazyFrame, chunk_rows: int) -> Iterator[pa.RecordBatchReader]:
    """The rows in order, in bounded memory if the query itself needs no more.

    Args:
        lazy_frame: a `polars.LazyFrame`; polars itself is not imported here.
        chunk_rows: number of rows that are passed on together.

    Raises:
        Whatever the query raises.
    """
    waiting: Queue[pl.DataFrame | _End] = Queue(_MAX_WAITING_FRAMES)
    is_abandoned = Event()

    def take(frame: pl.DataFrame) -> bool:
        waiting.put(frame)
        return is_abandoned.is_set()

    def run() -> None:
        error: BaseException | None = None
        try:
            lazy_frame.sink_batches(
                take, chunk_size=chunk_rows, maintain_order=True, engine="streaming"
            )
        except BaseException as raised:  # noqa: BLE001  panics of polars are no `Exception`s
            error = raised
        waiting.put(_End(error))

    thread = Thread(target=run, name="polars-query", daemon=True)
    thread.start()
    frame = None
    try:
        while not isinstance(frame := waiting.get(), _End):
            yield pa.RecordBatchReader.from_stream(frame)
        if frame.error is not None:
            raise frame.error
    finally:
        is_abandoned.set()
        while not isinstance(frame, _End):
            frame = waiting.get()
        thread.join()


class _End:
    """The marker after the last frame."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error
