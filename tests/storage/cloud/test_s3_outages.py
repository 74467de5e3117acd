"""What a table on S3 says while its endpoint fails, and that a short failure goes unnoticed."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from dagster_delta.errors import CommitStateUnknown, InvalidArgument, StorageFailure
from dagster_delta.storage import open_store
from dagster_delta.table.delta_table import DeltaTable
from tests.storage.failing_endpoint import FailingEndpoint, Way

pytestmark = pytest.mark.slow

ROWS = pa.table({"id": pa.array(range(20), pa.int64()), "name": [f"n{n}" for n in range(20)]})
FEATURES = {"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"}


@pytest.fixture
def uri(s3_bucket: str) -> str:
    return f"s3://{s3_bucket}/table"


def _table(uri: str, options: dict[str, str]) -> DeltaTable:
    table = DeltaTable.create(uri, ROWS.schema, properties=FEATURES, storage_options=options)
    table.append(ROWS)
    return table


def _merge(table: DeltaTable) -> object:
    return table.merge(ROWS, "t.id = s.id").when_matched_delete().execute()


READERS: dict[str, Callable[[DeltaTable], object]] = {
    "scan": lambda table: table.snapshot().scan().to_arrow(),
    "filtered scan": lambda table: table.snapshot().scan(where="name = 'n3'").to_arrow(),
    "changes": lambda table: table.changes(1).to_arrow(),
    "update": lambda table: table.update({"id": "id + 1"}, where="name = 'n3'"),
    "delete": lambda table: table.delete("name = 'n3'"),
    "merge": _merge,
    "optimize": lambda table: table.optimize(zorder_by=["id"]),
    "overwrite": lambda table: table.overwrite(ROWS.slice(3, 1), where="name = 'n3'"),
    "clone": lambda table: table.clone("memory://outage/clone", deep=True, storage_options={}),
}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("reader", "way"),
    [
        *((reader, "503") for reader in READERS),
        *((reader, way) for reader in ("scan", "clone") for way in ("reset", "page")),
    ],
)
@pytest.mark.examples(3)
def test_an_outage_while_data_files_are_read_is_no_damage(
    uri: str, options: dict[str, str], endpoint: FailingEndpoint, reader: str, way: Way
) -> None:
    table = _table(uri, options)
    with (
        endpoint.failing("GET", ".parquet", way) as asked,
        pytest.raises(StorageFailure) as caught,
    ):
        READERS[reader](table)
    assert asked
    assert str(caught.value.file).endswith(".parquet")
    assert "damaged" not in str(caught.value)
    assert table.refresh().scan().to_arrow().num_rows == 20


@pytest.mark.parametrize("way", ["503", "reset", "cut"])
def test_a_short_outage_while_a_data_file_is_read_goes_unnoticed(
    uri: str, options: dict[str, str], endpoint: FailingEndpoint, way: Way
) -> None:
    table = _table(uri, options)
    with endpoint.failing("GET", ".parquet", way, times=2) as asked:
        assert table.snapshot().scan().to_arrow().num_rows == 20
    assert len(asked) == 2


@pytest.mark.usefixtures("impatient")
def test_an_outage_while_a_file_of_deletion_vectors_is_read_is_no_damage(
    uri: str, options: dict[str, str], endpoint: FailingEndpoint
) -> None:
    many = pa.table({"id": pa.array(range(4000), pa.int64())})
    table = DeltaTable.create(uri, many.schema, properties=FEATURES, storage_options=options)
    table.append(many)
    table.delete("id % 7 = 3 OR id % 11 = 2")
    with endpoint.failing("GET", ".bin", "503") as asked, pytest.raises(StorageFailure):
        table.snapshot().scan().to_arrow()
    assert asked


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("way", ["503", "reset"])
def test_an_outage_while_a_checkpoint_is_read_is_no_damage(
    uri: str,
    options: dict[str, str],
    endpoint: FailingEndpoint,
    is_large: bool,
    way: Way,
) -> None:
    table = _table(uri, options)
    if is_large:
        # Such a checkpoint is not downloaded at once.
        table.set_description(secrets.token_hex(6 * 1024 * 1024))
    table.checkpoint()
    with (
        endpoint.failing("GET", ".checkpoint.parquet", way) as asked,
        pytest.raises(StorageFailure) as caught,
    ):
        DeltaTable(uri, storage_options=options).snapshot().scan().to_arrow()
    assert asked
    assert str(caught.value.file).endswith(".checkpoint.parquet")


@pytest.mark.parametrize("part", ["_last_checkpoint", "list-type=2", "0.json"])
def test_an_answer_that_breaks_off_is_asked_for_again(
    uri: str, options: dict[str, str], endpoint: FailingEndpoint, part: str
) -> None:
    _table(uri, options)
    with endpoint.failing("GET", part, "cut", times=2) as asked:
        read = DeltaTable(uri, storage_options=options).snapshot().scan().to_arrow()
    assert read.num_rows == 20
    assert len(asked) == 2


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("part", "way"),
    [
        *(("_last_checkpoint", way) for way in ("cut", "page", "unfinished page")),
        *(("list-type=2", way) for way in ("cut", "unfinished page")),
    ],
)
def test_answers_that_are_never_whole_are_a_storage_failure(
    uri: str, options: dict[str, str], endpoint: FailingEndpoint, part: str, way: Way
) -> None:
    _table(uri, options)
    with endpoint.failing("GET", part, way), pytest.raises(StorageFailure):
        DeltaTable(uri, storage_options=options)
    with endpoint.failing("GET", part, way), pytest.raises(StorageFailure):
        DeltaTable(uri, storage_options=options, must_exist=False)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("way", ["page", "unfinished page"])
def test_a_page_in_the_place_of_an_object_is_a_storage_failure(
    uri: str, options: dict[str, str], endpoint: FailingEndpoint, way: Way
) -> None:
    store = open_store(uri, options)
    store.put("a", b"x")
    calls: dict[str, Callable[[], Any]] = {
        "GET": lambda: store.read("a"),
        "HEAD": lambda: store.head("a"),
        "PUT": lambda: store.put("a", b"y"),
        "POST": lambda: store.delete(["a"]),
    }
    for method, call in calls.items():
        with endpoint.failing(method, "", way), pytest.raises(StorageFailure):
            call()
    assert store.read("a") == b"x"


@pytest.mark.usefixtures("impatient")
def test_a_page_that_answers_a_put_is_no_commit(
    uri: str, options: dict[str, str], endpoint: FailingEndpoint
) -> None:
    table = _table(uri, options)
    with endpoint.failing("PUT", "2.json", "page"), pytest.raises(StorageFailure):
        table.append(ROWS)
    assert DeltaTable(uri, storage_options=options).version() == 1
    assert table.append(ROWS).version == 2


def test_one_page_that_answers_a_put_is_put_right(
    uri: str, options: dict[str, str], endpoint: FailingEndpoint
) -> None:
    table = _table(uri, options)
    with endpoint.failing("PUT", "2.json", "page", times=1) as asked:
        assert table.append(ROWS).version == 2
    assert asked
    assert DeltaTable(uri, storage_options=options).snapshot().num_records == 40


@pytest.mark.usefixtures("impatient")
def test_a_commit_whose_answers_are_all_pages_is_of_unknown_state(
    uri: str, options: dict[str, str], endpoint: FailingEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = _table(uri, options)
    answered = endpoint.way_for

    def pages(method: str, path: str) -> Way | None:
        return "page" if path.endswith("2.json") and method != "GET" else answered(method, path)

    monkeypatch.setattr(endpoint, "way_for", pages)
    with pytest.raises(CommitStateUnknown):
        table.append(ROWS)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("way", ["page", "unfinished page"])
def test_a_page_that_answers_the_put_of_a_data_file_is_no_success(
    uri: str, options: dict[str, str], endpoint: FailingEndpoint, way: Way
) -> None:
    table = _table(uri, options)
    with endpoint.failing("PUT", ".parquet", way), pytest.raises(StorageFailure) as caught:
        table.append(ROWS)
    assert str(caught.value.file).endswith(".parquet")
    with endpoint.failing("PUT", ".parquet", way, times=1) as asked:
        table.append(ROWS)
    assert asked
    assert DeltaTable(uri, storage_options=options).snapshot().scan().to_arrow().num_rows == 40


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("way", ["page", "unfinished page"])
@pytest.mark.parametrize("method", ["PUT", "POST"])
@pytest.mark.parametrize("size_bytes", [0, 1, 6_000_000, 25_000_000])
@pytest.mark.examples(3)
def test_a_page_that_answers_an_upload_is_no_success(
    uri: str,
    options: dict[str, str],
    endpoint: FailingEndpoint,
    way: Way,
    method: str,
    size_bytes: int,
) -> None:
    store = open_store(uri, options)
    content = bytes(range(250)) * (size_bytes // 250) + b"x" * (size_bytes % 250)

    def upload() -> None:
        with store.open_output("a") as stream:
            for start in range(0, size_bytes, 1_000_000):
                stream.write(content[start : start + 1_000_000])

    # Only objects of several parts take a POST, before and after them.
    if method == "PUT" or size_bytes > 10_000_000:
        with endpoint.failing(method, "/a", way), pytest.raises(StorageFailure):
            upload()
    upload()
    assert store.read("a") == content


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("way", ["503", "reset"])
def test_an_outage_while_a_data_file_is_written_is_a_storage_failure(
    uri: str, options: dict[str, str], endpoint: FailingEndpoint, way: Way
) -> None:
    table = _table(uri, options)
    with endpoint.failing("PUT", ".parquet", way), pytest.raises(StorageFailure) as caught:
        table.append(ROWS)
    assert str(caught.value.file).endswith(".parquet")
    source = DeltaTable.create("memory://outage/source", ROWS.schema, mode="replace")
    source.append(ROWS)
    with endpoint.failing("PUT", ".parquet", way), pytest.raises(StorageFailure):
        source.clone(f"{uri}-clone", deep=True, storage_options=options)
    assert table.refresh().version == 1


@pytest.mark.usefixtures("impatient")
def test_credentials_that_cannot_be_renewed_are_a_storage_failure(
    uri: str, options: dict[str, str]
) -> None:
    _table(uri, options)
    asked = []

    def vend() -> dict[str, object]:
        asked.append(1)
        if len(asked) > 5:
            raise PermissionError("expired: SECRET")
        # The client asks again before they expire.
        soon = datetime.now(UTC) + timedelta(seconds=30)
        return {"access_key_id": "AK", "secret_access_key": "SECRET", "expires_at": soon}

    names = ("AWS_ENDPOINT_URL", "AWS_REGION")
    vended = {**{name: options[name] for name in names}, "credential_provider": vend}
    table = DeltaTable(uri, storage_options=vended)

    def read_on() -> None:
        while True:
            table.refresh().scan().to_arrow()

    with pytest.raises(StorageFailure, match="PermissionError") as caught:
        read_on()
    assert "SECRET" not in str(caught.value)
    assert len(asked) > 5


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("setting", ["AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN"])
def test_a_line_break_in_a_credential_does_not_end_the_process(
    s3_bucket: str, s3_options: dict[str, str], setting: str
) -> None:
    options = {**s3_options, setting: "a-secret\n"}
    with pytest.raises(StorageFailure, match="line break") as failure:
        open_store(f"s3://{s3_bucket}/table", options).put_if_absent("x", b"")
    assert "a-secret" not in str(failure.value)


@pytest.mark.usefixtures("impatient")
def test_lost_replies_at_the_end_of_an_upload_are_a_storage_failure(
    uri: str, options: dict[str, str], endpoint: FailingEndpoint
) -> None:
    store = open_store(uri, options)
    output = store.open_output("x")
    output.write(bytes(11 * 1024 * 1024))
    # Then the client aborts the upload, which has become the object, and does not exist any more.
    with (
        endpoint.failing("POST", "uploadId", "lost"),
        pytest.raises(StorageFailure, match="NoSuchUpload"),
    ):
        output.close()


@pytest.mark.usefixtures("impatient")
def test_a_bucket_of_another_region_is_named(
    uri: str, options: dict[str, str], endpoint: FailingEndpoint
) -> None:
    store = open_store(uri, options)
    with (
        endpoint.failing("GET", "", "301 PermanentRedirect"),
        pytest.raises(StorageFailure, match="another region"),
    ):
        store.read("x")


@pytest.mark.parametrize("way", ["403 ExpiredToken", "400 ExpiredToken"])
def test_credentials_that_expired_are_named(
    uri: str, options: dict[str, str], endpoint: FailingEndpoint, way: Way
) -> None:
    table = _table(uri, options)
    with (
        endpoint.failing("GET", ".json", way),
        pytest.raises(StorageFailure, match="ExpiredToken"),
    ):
        DeltaTable(uri, storage_options=options).snapshot().scan().to_arrow()
    with endpoint.failing("PUT", ".json", way), pytest.raises(StorageFailure, match="ExpiredToken"):
        table.append(ROWS)
    assert table.refresh().version == 1


def test_a_commit_whose_reply_was_lost_is_recognised_and_never_doubled(
    uri: str, options: dict[str, str], endpoint: FailingEndpoint
) -> None:
    table = _table(uri, options)
    with endpoint.failing("PUT", "2.json", "lost", times=1) as asked:
        assert table.append(ROWS).version == 2
    assert asked
    again = DeltaTable(uri, storage_options=options)
    assert again.version() == 2
    assert again.snapshot().scan().to_arrow().num_rows == 40


@pytest.mark.parametrize("way", ["429 SlowDown", "500 InternalError", "503 SlowDown"])
def test_a_busy_storage_is_asked_again(
    uri: str, options: dict[str, str], endpoint: FailingEndpoint, way: Way
) -> None:
    table = _table(uri, options)
    with endpoint.failing("PUT", "", way, times=2) as asked:
        assert table.append(ROWS).version == 2
    assert len(asked) == 2
    with endpoint.failing("GET", "", way, times=2) as asked:
        assert DeltaTable(uri, storage_options=options).snapshot().num_records == 40
    assert len(asked) == 2


def test_a_profile_that_does_not_exist_is_an_invalid_argument() -> None:
    with pytest.raises(InvalidArgument, match="profile"):
        open_store("s3://bucket/table", {"profile": "no-such-profile-here"})
