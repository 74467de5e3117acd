"""Runs several sources of record batches ahead of their consumer, in order and bounded memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from dagster_delta.parquet_format.reader import FETCHED_BYTES, release_scratch_memory

if TYPE_CHECKING:
    import pyarrow as pa


class BatchSource(msgspec.Struct, frozen=True):
    """A source of record batches. Sources that hold more than `FETCHED_BYTES` together do not run
    at the same time: later ones would take the connections of the first.
    """

    read: Callable[[], Iterable[pa.RecordBatch]]
    """Opens it; its `pyarrow.RecordBatch`es are produced on a worker thread."""
    fetched_bytes: int = 0
    """Encoded bytes that it holds in memory."""

    def changed(
        self, change: Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]
    ) -> BatchSource:
        """The source of changed batches."""
        return replace(self, read=lambda: change(self.read()))


def prefetch_in_order(
    sources: Iterable[BatchSource], *, threads: int, max_buffered_bytes: int
) -> Iterator[pa.RecordBatch]:
    """The record batches of all sources, one source after the other.

    `sources`: taken one at a time, as workers become free; a generator is closed at the end.
    `max_buffered_bytes`: maximum bytes produced but not consumed; each worker may exceed it by one
    batch.
    """
    prefetch = _Prefetch(iter(sources), max_buffered_bytes)
    workers = [
        threading.Thread(target=prefetch.work, name=f"delta-read-{index}", daemon=True)
        for index in range(threads)
    ]
    for worker in workers:
        worker.start()
    try:
        while (batch := prefetch.next_batch()) is not None:
            yield batch
    finally:
        prefetch.stop()
        for worker in workers:
            worker.join()
        # An error refers to itself through this frame, and would keep what the generator holds.
        if isinstance(sources, Generator):
            sources.close()


class _Channel:
    """The batches of one source that wait for the consumer."""

    __slots__ = ("batches", "error", "fetched_bytes", "is_done")

    def __init__(self) -> None:
        self.fetched_bytes = 0
        self.batches: deque[tuple[pa.RecordBatch, int]] = deque()
        self.error: BaseException | None = None
        self.is_done = False


class _Prefetch:
    """What workers and consumer share; all of it is guarded by one condition."""

    def __init__(self, sources: Iterator[BatchSource], max_bytes: int) -> None:
        self._sources = sources
        self._sources_lock = threading.Lock()
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        self._channels: deque[_Channel] = deque()
        self._buffered_bytes = 0
        self._fetched_bytes = 0
        self._exhausted = False
        self._stopped = False

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def work(self) -> None:
        while (taken := self._take_source()) is not None:
            source, channel = taken
            try:
                for batch in source.read():
                    if not self._put_batch(channel, batch):
                        break
            except BaseException as error:  # noqa: BLE001  raised again where it is consumed
                channel.error = error
            release_scratch_memory()
            with self._changed:
                self._fetched_bytes -= channel.fetched_bytes
                channel.is_done = True
                self._changed.notify_all()

    def _take_source(self) -> tuple[BatchSource, _Channel] | None:
        # The lock keeps the channels in the order of the sources; it is not the condition, because
        # taking a source may read a footer.
        with self._sources_lock:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._has_room())
                if self._stopped or self._exhausted:
                    return None
            channel = _Channel()
            source: BatchSource | None = None
            try:
                source = next(self._sources, None)
            except BaseException as error:  # noqa: BLE001  raised again where it is consumed
                channel.error, channel.is_done = error, True
            if source is not None:
                channel.fetched_bytes = source.fetched_bytes
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._may_fetch(channel))
                self._fetched_bytes += channel.fetched_bytes
                self._exhausted = source is None
                if source is not None or channel.error is not None:
                    self._channels.append(channel)
                self._changed.notify_all()
            return None if source is None or self._stopped else (source, channel)

    def _has_room(self) -> bool:
        return self._buffered_bytes < self._max_bytes

    def _may_fetch(self, channel: _Channel) -> bool:
        total = self._fetched_bytes + channel.fetched_bytes
        return total <= FETCHED_BYTES or channel.fetched_bytes in (0, total)

    def _put_batch(self, channel: _Channel, batch: pa.RecordBatch) -> bool:
        """Add a batch and wait for room. Returns False if the consumer has stopped."""
        size_bytes = batch.nbytes
        with self._changed:
            channel.batches.append((batch, size_bytes))
            self._buffered_bytes += size_bytes
            self._changed.notify_all()
            # The first in order may always continue once its own batches are taken: the others,
            # which fill the buffer, wait for it.
            self._changed.wait_for(
                lambda: (
                    self._stopped
                    or self._has_room()
                    or (self._channels[0] is channel and not channel.batches)
                )
            )
            return not self._stopped

    def next_batch(self) -> pa.RecordBatch | None:
        with self._changed:
            while True:
                self._changed.wait_for(self._is_ready)
                if not self._channels:
                    return None
                channel = self._channels[0]
                if channel.batches:
                    batch, size_bytes = channel.batches.popleft()
                    self._buffered_bytes -= size_bytes
                    self._changed.notify_all()
                    return batch
                self._channels.popleft()
                self._changed.notify_all()
                if channel.error is not None:
                    raise channel.error

    def _is_ready(self) -> bool:
        if not self._channels:
            return self._exhausted
        return bool(self._channels[0].batches) or self._channels[0].is_done
