"""Which files a stream takes from a log, batch by batch; nothing here needs Spark."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from dagster_delta.engines import embedded_engine
from dagster_delta.errors import (
    ChangeDataNotRecorded,
    InvalidArgument,
    SchemaMismatch,
    UnsupportedFeature,
    VersionNotFound,
)
from dagster_delta.protocol.log.paths import checksum_path, commit_path
from dagster_delta.streaming.data_source import DeltaLogSource, split_into_tasks
from dagster_delta.streaming.log_stream import LogStream
from dagster_delta.streaming.options import (
    Admission,
    SourceOptions,
    StreamOffset,
    Use,
    parse_source_options,
)
from dagster_delta.table.delta_table import DeltaTable

_names = itertools.count()


def new_table(**properties: str) -> DeltaTable:
    schema = pa.schema([("id", pa.int64()), ("p", pa.string())])
    uri = f"memory://streaming-{next(_names)}"
    return DeltaTable.create(uri, schema, partition_by=["p"], properties=properties)


def append(table: DeltaTable, *ids: int) -> None:
    table.append(pa.table({"id": pa.array(ids, pa.int64()), "p": [f"{each % 3}" for each in ids]}))


def stream_of(table: DeltaTable, **options: str) -> LogStream:
    parsed = parse_source_options({"path": table.uri, **options})
    return LogStream(parsed, DeltaTable(table.uri, store=table.store).snapshot())


def rows_between(
    table: DeltaTable, stream: LogStream, start: StreamOffset, end: StreamOffset
) -> list[dict[str, Any]]:
    sets = stream.files_between(start, end)
    if not sets:
        return []
    # The time of a commit is no use in a comparison.
    names = [name for name in sets[0].configuration.schema.names if name != "_commit_timestamp"]
    return [
        row
        for batch in embedded_engine().read_changes(table.store, sets, names)
        for row in batch.to_pylist()
    ]


def batches(
    table: DeltaTable,
    stream: LogStream,
    offset: StreamOffset | None = None,
    **limits: int,
) -> Iterator[tuple[StreamOffset, list[dict[str, Any]]]]:
    offset = stream.initial_offset() if offset is None else offset
    while True:
        end = stream.advance(offset, Admission(**limits))
        if end == offset:
            return
        yield end, rows_between(table, stream, offset, end)
        offset = end


def ids_of(found: Iterator[tuple[StreamOffset, list[dict[str, Any]]]]) -> list[list[int]]:
    return [sorted(row["id"] for row in rows) for _, rows in found]


def test_a_stream_begins_with_the_rows_that_are_there() -> None:
    table = new_table()
    append(table, 1, 2)
    stream = stream_of(table)
    start = stream.initial_offset()
    append(table, 3)
    assert ids_of(batches(table, stream, start)) == [[1, 2, 3]]


def test_a_version_or_latest_leaves_out_what_came_before() -> None:
    table = new_table()
    append(table, 1)
    append(table, 2)
    assert ids_of(batches(table, stream_of(table, startingVersion="2"))) == [[2]]
    latest = stream_of(table, startingVersion="latest")
    start = latest.initial_offset()
    append(table, 3)
    assert ids_of(batches(table, latest, start)) == [[3]]
    with pytest.raises(VersionNotFound, match="has not reached version 9"):
        stream_of(table, startingVersion="9").initial_offset()


def test_a_timestamp_begins_with_the_first_commit_since() -> None:
    table = new_table()
    append(table, 1)
    moment = table.snapshot(1).timestamp_ms
    text = f"{pa.scalar(moment, pa.timestamp('ms')).as_py().isoformat()}+00:00"
    stream = stream_of(table, startingTimestamp=text)
    assert stream.initial_offset().version <= 1
    assert ids_of(batches(table, stream)) == [[1]]
    with pytest.raises(VersionNotFound, match="Nothing was committed since"):
        stream_of(table, startingTimestamp="2999-01-01").initial_offset()


def test_limits_by_files_and_by_bytes_end_a_batch() -> None:
    table = new_table()
    for each in range(4):
        append(table, 3 * each)
    stream = stream_of(table, startingVersion="1")
    assert ids_of(batches(table, stream, max_files=3)) == [[0, 3, 6], [9]]
    assert ids_of(batches(table, stream, max_bytes=1)) == [[0], [3], [6], [9]]


@pytest.mark.parametrize("is_feed", ["false", "true"])
def test_rows_read_a_default_that_has_since_been_written_to_files(is_feed: str) -> None:
    table = new_table(**{"delta.enableChangeDataFeed": "true"})
    append(table, 1)
    append(table, 2)
    table.add_column("c", "INT", default="7", existing_rows="lazy")
    options = {"readChangeFeed": is_feed}
    first = stream_of(table, **options)
    offset = first.advance(first.initial_offset(), Admission(max_files=1))
    append(table, 3)
    table.delete("id = 1") if is_feed == "true" else None
    table.materialize_defaults()
    rest = batches(table, stream_of(table, **options), offset)
    found = [row for _, rows in rest for row in rows]
    assert {row["id"] for row in found} >= {2, 3}
    assert {row["c"] for row in found} == {7}


@settings(max_examples=40)
@given(
    limits=st.lists(st.integers(1, 5), min_size=1, max_size=8),
    restarts=st.lists(st.booleans(), min_size=1, max_size=8),
    is_feed=st.booleans(),
)
def test_no_file_is_lost_or_doubled_whatever_the_limits_and_restarts(
    limits: list[int], restarts: list[bool], is_feed: bool
) -> None:
    table = new_table(**{"delta.enableChangeDataFeed": "true"})
    options = {"readChangeFeed": str(is_feed).lower()}
    append(table, 1, 2, 3, 4)
    stream = stream_of(table, **options)
    offset = stream.initial_offset()
    append(table, 5, 6, 7)
    append(table, 8)
    found: Counter[int] = Counter()
    for limit, restart in zip(itertools.cycle(limits), itertools.cycle(restarts), strict=False):
        if restart:
            stream = stream_of(table, **options)
            offset = StreamOffset.from_json_value(offset.to_json_value())
        end = stream.advance(offset, Admission(max_files=limit))
        if end == offset:
            break
        found.update(row["id"] for row in rows_between(table, stream, offset, end))
        offset = end
    assert found == Counter(range(1, 9))


class Query:
    """What Spark does with a source: it records the end of a batch before the batch runs, and the
    batch as done afterwards. The start of the first batch it asks for whenever that runs.
    """

    def __init__(self, table: DeltaTable, *, limits_batches: bool, **options: str) -> None:
        self.source = DeltaLogSource({"path": table.uri, **options})
        self.limits_batches = limits_batches
        self.ends: list[dict[str, object]] = []
        self.done = 0
        self.sink: dict[int, list[dict[str, Any]]] = {}
        """The rows of each batch. A repeated batch finds its number there, and writes nothing."""

    def run(self, stops: Iterator[str], *, available_now: bool) -> None:
        """Run batches until one stops the query, or until there is nothing to read."""
        schema = self.source.schema()
        reader: Any = self.source.streamReader(schema)
        if available_now:
            reader.prepareForTriggerAvailableNow()
        while True:
            start = self.ends[self.done - 1] if self.done else reader.initialOffset()
            if len(self.ends) == self.done:
                limit = (start, reader.getDefaultReadLimit()) if self.limits_batches else ()
                end = json.loads(json.dumps(reader.latestOffset(*limit)))
                if end == start:
                    return
                self.ends.append(end)
            stop = next(stops)
            if stop == "planned":
                return
            partitions = reader.partitions(start, self.ends[self.done])
            rows = [
                row
                for partition in partitions
                for batch in reader.read(partition)
                for row in batch.to_pylist()
            ]
            known = self.sink.setdefault(self.done, rows)
            if self.limits_batches:
                assert Counter(map(str, known)) == Counter(map(str, rows))
            if stop == "written":
                return
            self.done += 1


@settings(max_examples=40)
@given(
    starting=st.sampled_from([{}, {"startingVersion": "1"}, {"startingVersion": "latest"}]),
    is_feed=st.booleans(),
    limits_batches=st.booleans(),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["append", "compact", "delete", "nothing"]),
            st.booleans(),
            st.lists(st.sampled_from(["planned", "written", "done"]), min_size=1, max_size=3),
        ),
        min_size=1,
        max_size=6,
    ),
)
@example({}, False, True, [("append", True, ["planned"]), ("append", True, ["done"])])
@example({}, False, True, [("append", True, ["planned"]), ("compact", True, ["done"])])
@example({}, True, True, [("append", True, ["planned"]), ("delete", True, ["done"])])
@example({}, False, False, [("append", True, ["planned"]), ("append", True, ["done"])])
def test_a_query_that_is_stopped_at_any_step_reads_each_row_once(
    starting: dict[str, str],
    is_feed: bool,
    limits_batches: bool,
    steps: list[tuple[str, bool, list[str]]],
) -> None:
    table = new_table(**{"delta.enableChangeDataFeed": "true"})
    for number in range(4):
        append(table, number)
    options = {**starting, "readChangeFeed": str(is_feed).lower()}
    options |= {"maxFilesPerTrigger": "2"} if limits_batches else {}
    query = Query(table, limits_batches=limits_batches, **options)
    held = Counter(range(4) if starting == {"startingVersion": "latest"} else ())
    number = 10
    for change, available_now, stops in steps:
        query.run(itertools.chain(stops, itertools.repeat("done")), available_now=available_now)
        if change == "append":
            append(table, number, number + 1)
            number += 2
        elif change == "compact":
            table.optimize("p = '0'")
        elif change == "delete" and is_feed:
            table.delete(f"id = {number % 4}")
    query.run(itertools.repeat("done"), available_now=True)
    for row in itertools.chain(*query.sink.values()):
        held[row["id"]] += -1 if row.get("_change_type") == "delete" else 1
    assert {id_: times for id_, times in held.items() if times} == Counter(
        table.snapshot().scan(["id"]).to_arrow()["id"].to_pylist()
    )


def test_rows_hidden_by_deletion_vectors_do_not_come() -> None:
    table = new_table(**{"delta.enableDeletionVectors": "true"})
    append(table, *range(0, 30, 3))
    table.delete("id IN (3, 27)")
    assert table.snapshot().files()["has_deletion_vector"].to_pylist() == [True]
    assert ids_of(batches(table, stream_of(table))) == [[0, 6, 9, 12, 15, 18, 21, 24]]


def test_commits_that_only_rearrange_rows_make_no_batch() -> None:
    table = new_table()
    append(table, 1)
    stream = stream_of(table, startingVersion="latest")
    start = stream.initial_offset()
    for _ in range(3):
        rearrange(table)
    assert stream.advance(start, Admission()) == start
    append(table, 2)
    assert ids_of(batches(table, stream, start)) == [[2]]


def test_many_commits_without_rows_move_the_offset_on() -> None:
    table = new_table()
    append(table, 1)
    stream = stream_of(table, startingVersion="latest")
    start = stream.initial_offset()
    for _ in range(25):
        rearrange(table)
    assert stream.advance(start, Admission()).version == start.version + 25


def rearrange(table: DeltaTable) -> None:
    """A commit that changes no row, as OPTIMIZE makes them."""
    transaction = table.transaction()
    transaction.stage_configuration(table.snapshot().configuration)
    transaction.commit("OPTIMIZE", parameters={})
    table.refresh()


@pytest.mark.parametrize(
    ("option", "deleted", "rewritten"),
    [
        ({}, "ignoreDeletes", "ignoreChanges"),
        ({"ignoreDeletes": "true"}, [[9]], "ignoreChanges"),
        ({"ignoreChanges": "true"}, [[9]], [[3, 9]]),
        ({"skipChangeCommits": "true"}, [[9]], [[9]]),
    ],
)
def test_commits_that_change_rows_do_what_the_options_say(
    option: dict[str, str], deleted: object, rewritten: object
) -> None:
    for where, expected in (("p = '0'", deleted), ("id = 6", rewritten)):
        table = new_table()
        append(table, 3, 6)
        stream = stream_of(table, startingVersion="latest", **option)
        start = stream.initial_offset()
        table.delete(where)
        append(table, 9)
        if isinstance(expected, str):
            with pytest.raises(UnsupportedFeature, match=expected):
                stream.advance(start, Admission())
        else:
            assert ids_of(batches(table, stream, start)) == expected


def test_a_new_column_ends_the_batch_before_it_and_needs_a_restart() -> None:
    table = new_table()
    append(table, 1)
    stream = stream_of(table)
    start = stream.initial_offset()
    append(table, 2)
    table.append(pa.table({"id": [3], "p": ["x"], "new": [1.5]}), schema_mode="merge")
    append(table, 4)
    end = stream.advance(start, Admission())
    assert end.version == 3
    assert sorted(row["id"] for row in rows_between(table, stream, start, end)) == [1, 2]
    with pytest.raises(SchemaMismatch, match="start the query again"):
        stream.advance(end, Admission())
    again = stream_of(table)
    assert [(row["id"], row["new"]) for row in next(batches(table, again, end))[1]] == [
        (3, 1.5),
        (4, None),
    ]


def test_rows_that_the_new_schema_cannot_show_are_refused_after_a_restart() -> None:
    table = new_table()
    append(table, 1)
    offset = stream_of(table, startingVersion="1").initial_offset()
    replaced = pa.table({"id": ["text"], "p": ["x"]})
    table.overwrite(replaced, schema_mode="overwrite", partition_by=["p"])
    with pytest.raises(SchemaMismatch, match="column id was of type long"):
        stream_of(table, ignoreChanges="true").advance(offset, Admission())


def test_a_property_that_changes_does_not_stop_the_stream() -> None:
    table = new_table()
    stream = stream_of(table)
    start = stream.initial_offset()
    transaction = table.transaction()
    configuration = table.snapshot().configuration
    metadata = msgspec.structs.replace(
        configuration.metadata, configuration={"delta.logRetentionDuration": "interval 9 days"}
    )
    transaction.stage_configuration(type(configuration)(configuration.protocol, metadata))
    transaction.commit("SET TBLPROPERTIES", parameters={})
    table.refresh()
    append(table, 7)
    assert ids_of(batches(table, stream, start)) == [[7]]


def test_a_log_that_was_cleaned_up_is_an_error_and_not_a_gap() -> None:
    table = new_table()
    append(table, 1)
    append(table, 2)
    offset = stream_of(table, startingVersion="1").initial_offset()
    table.checkpoint()
    table.store.delete([commit_path(0), commit_path(1)])
    with pytest.raises(VersionNotFound, match="start a new query"):
        stream_of(table).advance(offset, Admission())


def test_a_stream_behind_a_clean_up_does_not_wait_for_what_was_deleted() -> None:
    table = new_table()
    stream = stream_of(table)
    start = stream.advance(stream.initial_offset(), Admission())
    for each in range(4):
        append(table, each)
    table.checkpoint()
    table.store.delete([commit_path(version) for version in range(4)])
    table.store.delete(["_delta_log/_last_checkpoint"])
    with pytest.raises(VersionNotFound, match="start a new query"):
        stream.advance(start, Admission())
    assert stream.latest_version() == 4


def test_a_checkpoint_of_another_table_is_refused() -> None:
    table, other = new_table(), new_table()
    offset = stream_of(other).initial_offset()
    with pytest.raises(InvalidArgument, match="checkpoint location of its own"):
        stream_of(table).advance(offset, Admission())
    with pytest.raises(InvalidArgument, match="not an offset of this source"):
        StreamOffset.from_json_value({"reservoirVersion": 4})


def test_a_log_that_was_set_back_is_refused() -> None:
    table = new_table()
    append(table, 1)
    offset = StreamOffset(table_id=table.metadata().id, version=9)
    with pytest.raises(VersionNotFound, match="set back"):
        stream_of(table).advance(offset, Admission())


def test_a_log_that_was_set_back_and_has_grown_again_is_refused() -> None:
    table = new_table()
    append(table, 1)
    stream = stream_of(table)
    (offset, _), *_ = batches(table, stream)
    append(table, 2)
    end = stream.advance(offset, Admission())
    assert StreamOffset.from_json_value(json.loads(json.dumps(end.to_json_value()))) == end
    table.store.delete([commit_path(2), checksum_path(2)])
    other = DeltaTable(table.uri, store=table.store)
    append(other, 3)
    append(other, 4)
    with pytest.raises(VersionNotFound, match="set back and has grown again"):
        stream_of(table).advance(end, Admission())
    # An offset of an older release does not name the commit.
    old = msgspec.structs.replace(end, commit=UNSET)
    assert stream_of(table).advance(old, Admission()).version == 4


def test_a_shorter_log_is_noticed_by_a_running_query() -> None:
    table = new_table()
    append(table, 1)
    append(table, 2)
    stream = stream_of(table)
    assert stream.latest_version() == 2
    table.store.delete([meta.path for meta in table.store.list_recursive()])
    DeltaTable.create(table.uri, pa.schema([("id", pa.int64())]), store=table.store)
    with pytest.raises(VersionNotFound, match="up to version 2, and it is at 0"):
        stream.latest_version()


def test_the_stream_of_changes_is_the_change_data_feed() -> None:
    table = new_table(**{"delta.enableChangeDataFeed": "true"})
    append(table, 1, 2, 3, 6)
    table.update(set={"id": "id + 100"}, where="p = '0'")
    table.delete("id = 2")
    stream = stream_of(table, readChangeFeed="true", startingVersion="1")
    found = [row for _, rows in batches(table, stream, max_files=1) for row in rows]
    feed = table.changes(1, columns=["id", "p", "_change_type", "_commit_version"])
    assert Counter(map(str, found)) == Counter(map(str, feed.to_arrow().to_pylist()))
    assert len(list(batches(table, stream, max_files=1))) == 3


def test_the_stream_of_changes_begins_with_inserts() -> None:
    table = new_table(**{"delta.enableChangeDataFeed": "true"})
    append(table, 1)
    stream = stream_of(table, readChangeFeed="true")
    start = stream.initial_offset()
    table.delete("id = 1")
    (_, rows), *rest = batches(table, stream, start)
    assert [(row["id"], row["_change_type"], row["_commit_version"]) for row in rows] == [
        (1, "insert", 1),
        (1, "delete", 2),
    ]
    assert not rest


def test_rows_that_a_commit_replaced_have_the_defaults_that_they_had() -> None:
    table = new_table(**{"delta.enableChangeDataFeed": "true"})
    append(table, 1)
    table.add_column("c", "INT", default="7", existing_rows="lazy")
    other = pa.table({"id": [9], "p": ["0"], "c": pa.array([1], pa.int32())})
    start = table.overwrite(other, schema_mode="overwrite").version
    feed = table.changes(start, columns=["id", "c", "_change_type"]).to_arrow().to_pylist()
    stream = stream_of(table, readChangeFeed="true", startingVersion=str(start))
    streamed = [row for _, rows in batches(table, stream) for row in rows]
    for rows in (feed, streamed):
        found = [(row["id"], row["c"], row["_change_type"]) for row in rows]
        assert found == [(1, 7, "delete"), (9, 1, "insert")]


def test_rows_of_a_table_that_was_replaced_by_one_of_other_types_are_refused() -> None:
    table = new_table(**{"delta.enableChangeDataFeed": "true"})
    append(table, 1)
    other = pa.table({"id": ["one"], "p": ["0"]})
    table.overwrite(other, schema_mode="overwrite")
    with pytest.raises(SchemaMismatch, match="column id was of type long"):
        table.changes(2).to_arrow()
    stream = stream_of(table, readChangeFeed="true", startingVersion="2")
    with pytest.raises(SchemaMismatch, match="column id was of type long"):
        stream.advance(stream.initial_offset(), Admission())


def test_a_stream_of_changes_begins_where_another_table_was_made_or_the_log_begins() -> None:
    table = new_table(**{"delta.enableChangeDataFeed": "true"})
    append(table, 1)
    store = table.store
    actions = [json.loads(line) for line in store.read(commit_path(0)).splitlines()]
    (metadata,) = (action["metaData"] for action in actions if "metaData" in action)
    (add,) = (
        json.loads(line)["add"]
        for line in store.read(commit_path(1)).splitlines()
        if b'"add"' in line
    )
    kept = {name: add[name] for name in ("path", "partitionValues", "size")}
    remove = {**kept, "dataChange": True, "deletionTimestamp": 1, "extendedFileMetadata": True}
    replacing = [{"metaData": {**metadata, "id": "another"}}, {"remove": remove}]
    store.put_if_absent(commit_path(2), b"\n".join(map(msgspec.json.encode, replacing)))
    table = DeltaTable(table.uri, store=store)
    table.checkpoint()
    append(table, 2)
    for is_cleaned in (False, True):
        if is_cleaned:
            store.delete([commit_path(version) for version in (0, 1)])
        stream = stream_of(table, readChangeFeed="true", startingVersion="2")
        streamed = [row for _, rows in batches(table, stream) for row in rows]
        found = [(row["id"], row["_change_type"]) for row in streamed]
        assert found == [(1, "delete"), (2, "insert")]


def test_changes_that_were_not_recorded_stop_the_stream() -> None:
    table = new_table()
    append(table, 1)
    stream = stream_of(table, readChangeFeed="true", startingVersion="1")
    with pytest.raises(ChangeDataNotRecorded, match="feed was off"):
        stream.advance(stream.initial_offset(), Admission())


def test_tasks_hold_every_file_once() -> None:
    table = new_table()
    append(table, *range(9))
    stream = stream_of(table)
    start = stream.initial_offset()
    sets = stream.files_between(start, stream.advance(start, Admission()))
    tasks = split_into_tasks(table.store.location, sets, ("id",))
    named = [path for task in tasks for path in task.changes.files["path"].to_pylist()]
    assert Counter(named) == Counter(table.snapshot().live_files(["path"])["path"].to_pylist())


def test_options_are_known_by_name_whatever_their_case() -> None:
    found = parse_source_options(
        {
            "path": "s3://lake/t",
            "MAXBYTESPERTRIGGER": "2g",
            "maxfilespertrigger": "7",
            "readChangeData": "TRUE",
            "startingVersion": " LATEST ",
            "partitionBy": "p, q",
            "storage.aws_region": "eu-west-1",
        }
    )
    assert found == SourceOptions(
        uri="s3://lake/t",
        storage_options={"aws_region": "eu-west-1"},
        max_files=7,
        max_bytes=2 << 30,
        read_change_feed=True,
        starting_version="latest",
        partition_by=("p", "q"),
    )
    assert "eu-west-1" not in repr(found)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "the location of the table is lacking"),
        # What Spark hands over for CREATE TABLE, and for saveAsTable.
        ({"path": "t", "provider": "delta_log"}, "CREATE TEMPORARY VIEW"),
        ({"path": "t", "ignoreDelete": "true"}, "no option 'ignoreDelete'"),
        ({"path": "t", "ignoreDeletes": "yes"}, "ignoreDeletes is 'yes': Expected `bool`"),
        (
            {"path": "t", "maxFilesPerTrigger": "0"},
            "maxFilesPerTrigger is 0: Expected `int` >= 1",
        ),
        (
            {"path": "t", "maxBytesPerTrigger": "many"},
            "maxBytesPerTrigger is 'many': Expected `int",
        ),
        ({"path": "t", "startingVersion": "-1"}, "startingVersion is '-1'"),
        ({"path": "t", "versionAsOf": "null"}, "versionAsOf is 'null': Expected `int"),
        ({"path": "t", "versionAsOf": "1e3"}, "versionAsOf is '1e3'"),
        ({"path": "t", "ignoreDeletes": "1"}, "ignoreDeletes is 1: Expected `bool`"),
        ({"path": "t", "partitionBy": "p,,q"}, "partitionBy"),
        ({"path": "t", "startingVersion": "1", "startingTimestamp": "2020-01-01"}, "not both"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        parse_source_options(options)


def test_a_table_that_is_made_anew_under_a_query_is_noticed() -> None:
    table = new_table()
    append(table, 1)
    stream = stream_of(table)
    start = stream.initial_offset().next_version()
    append(table, 2)
    end = stream.advance(start, Admission())
    assert end.version == 3
    store = table.store
    store.delete([commit_path(version) for version in range(3)])
    anew = DeltaTable.create(table.uri, pa.schema([("id", pa.int64())]), store=store)
    for each in range(3):
        anew.append(pa.table({"id": list(range(each + 10))}))
    with pytest.raises(VersionNotFound, match="version 2 that the query has read is another"):
        stream.advance(end, Admission())


@pytest.mark.parametrize(
    ("use", "options", "message"),
    [
        ("a stream", {"versionAsOf": "1"}, "whose options are startingVersion"),
        ("a batch query", {"ignoreDeletes": "true"}, "ignoreDeletes has no effect on a batch"),
        ("an append", {"replaceWhere": "a = 1"}, "replaceWhere has no effect on an append"),
        ("an overwrite", {"readChangeFeed": "true"}, "readChangeFeed has no effect on an over"),
    ],
)
def test_an_option_of_another_use_is_refused(
    use: Use, options: dict[str, str], message: str
) -> None:
    parsed = parse_source_options({"path": "t", **options})
    with pytest.raises(InvalidArgument, match=message):
        parsed.check_use(use)
