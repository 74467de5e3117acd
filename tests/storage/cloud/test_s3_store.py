"""What S3 answers besides yes, and what its clones answer instead, against a real server."""

from __future__ import annotations

import logging
import socket
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from dagster_delta.errors import ConditionalPutUnsupported, InvalidArgument, StorageFailure
from dagster_delta.storage import open_store
from dagster_delta.storage.cloud.store import CloudStore
from tests.storage.conftest import cloud_store, s3_client
from tests.storage.failing_endpoint import FailingEndpoint

COMMIT = "_delta_log/00000000000000000000.json"


@pytest.fixture
def store(s3_bucket: str, options: dict[str, str]) -> CloudStore:
    return cloud_store(f"s3://{s3_bucket}/table", options)


def _methods(endpoint: FailingEndpoint) -> list[str]:
    """The requests so far, as their method and, for a listing, its name."""
    seen, endpoint.seen = endpoint.seen, []
    return ["LIST" if "list-type=2" in path else method for method, path in seen]


def test_a_provider_that_refuses_conditional_puts_is_read_only(
    store: CloudStore, endpoint: FailingEndpoint
) -> None:
    with (
        endpoint.failing("PUT", "", "501 NotImplemented"),
        pytest.raises(ConditionalPutUnsupported, match="If-None-Match"),
    ):
        store.put_if_absent(COMMIT, b"x")
    assert not store.supports_put_if_absent
    assert store.head(COMMIT) is None


def test_a_provider_that_overwrites_in_silence_is_found_out(
    store: CloudStore, endpoint: FailingEndpoint
) -> None:
    store.put(COMMIT, b"theirs")
    with endpoint.failing("PUT", "", "unconditional"):
        for _ in range(2):
            with pytest.raises(ConditionalPutUnsupported, match="overwrites"):
                store.put_if_absent(COMMIT, b"ours")
    assert store.read(COMMIT) == b"theirs"
    assert not store.supports_put_if_absent
    assert [meta.path for meta in store.list_recursive()] == [COMMIT]


def test_a_bucket_is_probed_once(store: CloudStore, endpoint: FailingEndpoint) -> None:
    store.put_if_absent("_delta_log/0.json", b"x")
    # The client deletes by a POST that names many objects.
    assert _methods(endpoint) == ["PUT", "PUT", "POST", "PUT"]
    again = open_store(store.location.uri, store.location.options)
    again.put_if_absent("_delta_log/1.json", b"x")
    assert _methods(endpoint) == ["PUT"]


def test_a_provider_that_is_vouched_for_is_not_probed(
    s3_bucket: str, options: dict[str, str], endpoint: FailingEndpoint
) -> None:
    vouched = open_store(f"s3://{s3_bucket}/table", {**options, "conditional_put": "etag"})
    vouched.put_if_absent("_delta_log/0.json", b"x")
    with pytest.raises(FileExistsError):
        vouched.put_if_absent("_delta_log/0.json", b"x")
    assert _methods(endpoint) == ["PUT", "PUT"]


def test_conditional_puts_can_be_switched_off(s3_bucket: str, s3_options: dict[str, str]) -> None:
    store = open_store(f"s3://{s3_bucket}/t", {**s3_options, "AWS_CONDITIONAL_PUT": "disabled"})
    assert not store.supports_put_if_absent
    with pytest.raises(ConditionalPutUnsupported, match="disabled"):
        store.put_if_absent(COMMIT, b"x")


@pytest.mark.parametrize(
    ("uri", "options"),
    [
        ("s3://bucket/table", {"skip_signature": "true", "region": "eu-central-1"}),
        ("s3://bucket/table", {"skip_signature": "true", "region": "cn-north-1"}),
        ("gs://bucket/table", {"bearer_token": "t"}),
        ("abfss://c@account.dfs.core.windows.net/table", {"account_key": "a2V5"}),
    ],
)
def test_the_clouds_themselves_are_not_probed(uri: str, options: dict[str, str]) -> None:
    store = CloudStore(uri, options)
    assert store._client.is_trusted
    assert store.supports_put_if_absent


def test_a_conflict_that_is_not_decided_yet_is_asked_again(
    store: CloudStore, endpoint: FailingEndpoint
) -> None:
    store.put_if_absent("_delta_log/probe.json", b"x")
    with endpoint.failing("PUT", COMMIT, "409 ConditionalRequestConflict", times=3) as asked:
        store.put_if_absent(COMMIT, b"x")
    assert store.read(COMMIT) == b"x"
    assert len(asked) == 3


@pytest.mark.usefixtures("impatient")
def test_a_conflict_that_is_never_decided_is_a_failure(
    store: CloudStore, endpoint: FailingEndpoint
) -> None:
    store.put_if_absent("_delta_log/probe.json", b"x")
    with (
        endpoint.failing("PUT", COMMIT, "409 ConditionalRequestConflict"),
        pytest.raises(StorageFailure, match="busy"),
    ):
        store.put_if_absent(COMMIT, b"x")


def test_another_conflict_is_not_taken_for_an_object(
    store: CloudStore, endpoint: FailingEndpoint
) -> None:
    store.put_if_absent("_delta_log/probe.json", b"x")
    with (
        endpoint.failing("PUT", COMMIT, "409 ContainerBeingDeleted"),
        pytest.raises(StorageFailure, match="ContainerBeingDeleted"),
    ):
        store.put_if_absent(COMMIT, b"x")


@pytest.mark.parametrize("way", ["lost", "reset"])
def test_a_put_without_a_reply_is_a_failure_and_the_object_may_exist(
    store: CloudStore, endpoint: FailingEndpoint, way: str
) -> None:
    store.put_if_absent("_delta_log/probe.json", b"x")
    with endpoint.failing("PUT", COMMIT, way, times=1), pytest.raises(StorageFailure):
        store.put_if_absent(COMMIT, b"ours")
    assert (store.head(COMMIT) is not None) == (way == "lost")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("code", ["500 InternalError", "403 AccessDenied"])
def test_any_other_answer_leaves_the_commit_open(
    store: CloudStore, endpoint: FailingEndpoint, code: str
) -> None:
    store.put_if_absent("_delta_log/probe.json", b"x")
    with (
        endpoint.failing("PUT", COMMIT, code),
        pytest.raises(StorageFailure, match=code.partition(" ")[2]) as caught,
    ):
        store.put_if_absent(COMMIT, b"x")
    assert caught.value.file == COMMIT
    assert not isinstance(caught.value, ConditionalPutUnsupported)


@pytest.mark.usefixtures("impatient")
def test_a_server_that_is_not_there_is_a_failure_without_secrets(
    s3_options: dict[str, str],
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://user:passw0rd@127.0.0.1:{unused.getsockname()[1]}"
    options = {**s3_options, "AWS_ENDPOINT_URL": endpoint}
    store = open_store("s3://bucket/table", options)
    for call in (lambda: store.read(COMMIT), lambda: list(store.list_recursive())):
        with pytest.raises(StorageFailure) as caught:
            call()
        error = caught.value
        shown = f"{error} {error!r} {error.__cause__!r} {store!r} {store.location}"
        assert "passw0rd" not in shown
        assert s3_options["AWS_SECRET_ACCESS_KEY"] not in shown
        assert s3_options["AWS_ACCESS_KEY_ID"] not in shown


def test_a_bucket_that_does_not_exist_is_a_failure_and_not_an_empty_table(
    s3_options: dict[str, str],
) -> None:
    store = open_store("s3://no-such-bucket-here/table", s3_options)
    with pytest.raises(StorageFailure, match="NoSuchBucket"):
        list(store.list_from("_delta_log"))
    with pytest.raises(StorageFailure, match="NoSuchBucket"):
        store.read(COMMIT)
    with pytest.raises(StorageFailure, match="NoSuchBucket"):
        store.put_if_absent(COMMIT, b"x")


def test_a_body_that_breaks_off_is_read_again(store: CloudStore, endpoint: FailingEndpoint) -> None:
    store.put("a", b"whole")
    with endpoint.failing("GET", "/a", "cut", times=2) as asked:
        assert store.read("a") == b"whole"
    assert len(asked) == 2


def test_an_empty_object_opens(store: CloudStore) -> None:
    store.put("empty", b"")
    with store.open_input("empty") as file:
        assert file.size() == 0
        assert file.read() == b""


def test_a_listing_asks_once_for_what_it_holds(
    store: CloudStore, endpoint: FailingEndpoint
) -> None:
    for version in range(5):
        store.put(f"_delta_log/{version:020d}.json", b"x")
    _methods(endpoint)
    found = list(store.list_from("_delta_log", f"{3:020d}.json"))
    assert [meta.path for meta in found] == [f"_delta_log/{v:020d}.json" for v in (3, 4)]
    assert store.read(found[0].path) == b"x"
    assert _methods(endpoint) == ["LIST", "GET"]


def test_a_directory_with_many_objects_is_passed_over(
    store: CloudStore, endpoint: FailingEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_delta.storage.cloud.store._PAGE", 10)
    for name in ("0", *(f"_sidecars/{number}" for number in range(12)), "_z"):
        store.put(f"_delta_log/{name}", b"x")
    _methods(endpoint)
    assert [meta.path for meta in store.list_from("_delta_log")] == [
        "_delta_log/0",
        "_delta_log/_z",
    ]
    assert _methods(endpoint) == ["LIST", "LIST"]


def test_a_marker_of_an_empty_directory_is_no_file(
    store: CloudStore, s3_options: dict[str, str]
) -> None:
    for key in ("table/_delta_log/", "table/", "table/deep/er/"):
        s3_client(s3_options).put_object(Bucket=store._bucket.name, Key=key, Body=b"")
    store.put("deep/empty", b"")
    assert list(store.list_from("_delta_log")) == []
    assert [meta.path for meta in store.list_recursive()] == ["deep/empty"]


@pytest.mark.parametrize("path", ["a//b", "a/./b", "a\nb"])
def test_a_name_that_the_client_cannot_request_is_refused_by_name(
    store: CloudStore, path: str
) -> None:
    for call in (store.read, store.head, lambda path: store.put(path, b"")):
        with pytest.raises(InvalidArgument, match="cannot request"):
            call(path)


def _read_in_child(uri: str, options: dict[str, str]) -> str:
    try:
        open_store(uri, options).read(COMMIT)
    except StorageFailure as error:
        return str(error)
    return "read"


def test_a_forked_process_is_told_to_be_spawned(store: CloudStore, options: dict[str, str]) -> None:
    store.put(COMMIT, b"x")
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        said = pool.submit(_read_in_child, store.location.uri, options).result()
    assert "spawn" in said


def test_a_file_of_another_bucket_is_read_by_its_uri(
    store: CloudStore, options: dict[str, str], s3_options: dict[str, str]
) -> None:
    s3_client(s3_options).create_bucket(Bucket="another-bucket-of-a-clone")
    other = open_store("s3a://another-bucket-of-a-clone/t", options)
    other.put("a b%20.bin", b"shallow")
    assert store.read(other.resolve_uri("a b%20.bin")) == b"shallow"
    assert store.open_input("s3://another-bucket-of-a-clone/t/a b%20.bin").read() == b"shallow"


def test_an_object_is_copied_by_the_storage_where_it_can(
    store: CloudStore, s3_bucket: str, options: dict[str, str], endpoint: FailingEndpoint
) -> None:
    target = CloudStore(f"s3://{s3_bucket}/other", options)
    store.put("a b%20.bin", b"content")
    assert target.copy_object(store, "a b%20.bin", "new/a b%20.bin")
    assert _methods(endpoint) == ["PUT", "PUT", "HEAD"]
    assert target.read("new/a b%20.bin") == b"content"
    with pytest.raises(FileNotFoundError):
        target.copy_object(store, "nothing", "copy")
    # Another account may not read what this one may.
    stranger = CloudStore(f"s3://{s3_bucket}/other", {**options, "token": "other"})
    assert not stranger.copy_object(store, "a b%20.bin", "copy")
    with endpoint.failing("PUT", "copy", "400 InvalidRequest"):
        assert not target.copy_object(store, "a b%20.bin", "copy")
    assert target.head("copy") is None


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("way", ["page", "unfinished page"])
def test_a_page_that_answers_a_copy_is_no_copy(
    store: CloudStore, endpoint: FailingEndpoint, way: str
) -> None:
    store.put("a", b"content")
    with endpoint.failing("PUT", "copy", way):
        assert not store.copy_object(store, "a", "copy")
    assert store.head("copy") is None
    assert store.copy_object(store, "a", "copy")


def test_the_log_of_botocore_has_no_session_token(
    s3_bucket: str, s3_options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    options = {**s3_options, "AWS_SESSION_TOKEN": "hush-hush"}
    store = cloud_store(f"s3://{s3_bucket}/table", options)
    store.put(COMMIT, b"x")
    assert [each.path for each in store.list_from("_delta_log")] == [COMMIT]
    assert "hush-hush" not in caplog.text
    s3_client(options).list_buckets()
    assert "Sending http request" in caplog.text
