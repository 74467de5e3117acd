"""What S3 answers besides yes, and what its clones answer instead, against a real server."""

from __future__ import annotations

import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dagster_delta.errors import ConditionalPutUnsupported, StorageFailure
from dagster_delta.storage import open_store
from dagster_delta.storage.s3_store import S3Store

COMMIT = "_delta_log/00000000000000000000.json"


@pytest.fixture
def store(s3_bucket: str, s3_options: dict[str, str]) -> S3Store:
    opened = open_store(f"s3://{s3_bucket}/table", s3_options)
    assert isinstance(opened, S3Store)
    return opened


@pytest.fixture
def requests(store: S3Store) -> list[str]:
    """The operations that the store asks the server for, as they are asked."""
    asked: list[str] = []
    store._client.meta.events.register(
        "before-send.s3", lambda event_name, **_: asked.append(event_name.rpartition(".")[2])
    )
    return asked


def _answer(status: int, code: str) -> Any:
    from botocore.awsrequest import AWSResponse

    class _Body:
        def stream(self) -> list[bytes]:
            return [f"<Error><Code>{code}</Code><Message>m</Message></Error>".encode()]

    return AWSResponse("http://s3", status, {}, _Body())


def _before_puts(store: S3Store, hook: Callable[[Any], Any], *, stage: str = "send") -> None:
    def handle(request: Any, **_: object) -> Any:
        return hook(request)

    store._client.meta.events.register(f"before-{stage}.s3.PutObject", handle)


def _do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    # In these modules only: the server runs in this process and may sleep.
    for module in ("botocore.endpoint", "dagster_delta.storage.s3_store"):
        monkeypatch.setattr(f"{module}.time", SimpleNamespace(sleep=lambda _: None))


def test_a_provider_that_refuses_conditional_puts_is_read_only(store: S3Store) -> None:
    _before_puts(store, lambda _: _answer(501, "NotImplemented"))
    with pytest.raises(ConditionalPutUnsupported, match="If-None-Match"):
        store.put_if_absent(COMMIT, b"x")
    assert not store.supports_put_if_absent
    assert store.head(COMMIT) is None


def test_a_provider_that_overwrites_in_silence_is_found_out(store: S3Store) -> None:
    def forget_the_condition(request: Any) -> None:
        del request.headers["If-None-Match"]

    _before_puts(store, forget_the_condition, stage="sign")
    store.put(COMMIT, b"theirs")
    for _ in range(2):
        with pytest.raises(ConditionalPutUnsupported, match="overwrites"):
            store.put_if_absent(COMMIT, b"ours")
    assert store.read(COMMIT) == b"theirs"
    assert not store.supports_put_if_absent
    assert [meta.path for meta in store.list_recursive()] == [COMMIT]


def test_a_bucket_is_probed_once(store: S3Store, requests: list[str]) -> None:
    store.put_if_absent("_delta_log/0.json", b"x")
    assert requests == ["PutObject", "PutObject", "DeleteObject", "PutObject"]
    again = open_store(store.location.uri, store.location.options)
    again.put_if_absent("_delta_log/1.json", b"x")
    assert requests[4:] == ["PutObject"]


def test_a_provider_that_is_vouched_for_is_not_probed(store: S3Store, requests: list[str]) -> None:
    vouched = S3Store(store.location.uri, {**store.location.options, "conditional_put": "etag"})
    vouched._client = store._client
    vouched.put_if_absent("_delta_log/0.json", b"x")
    with pytest.raises(FileExistsError):
        vouched.put_if_absent("_delta_log/0.json", b"x")
    assert requests == ["PutObject", "PutObject"]


def test_conditional_puts_can_be_switched_off(s3_bucket: str, s3_options: dict[str, str]) -> None:
    store = open_store(f"s3://{s3_bucket}/t", {**s3_options, "AWS_CONDITIONAL_PUT": "disabled"})
    assert not store.supports_put_if_absent
    with pytest.raises(ConditionalPutUnsupported, match="disabled"):
        store.put_if_absent(COMMIT, b"x")


def test_aws_itself_is_not_probed() -> None:
    store = S3Store("s3://bucket/table", {"key": "a", "secret": "b", "region": "eu-central-1"})
    assert store._connection.is_aws
    assert store.supports_put_if_absent


def test_a_conflict_that_is_not_decided_yet_is_asked_again(store: S3Store) -> None:
    store.put_if_absent("_delta_log/probe.json", b"x")
    answers = [_answer(409, "ConditionalRequestConflict") for _ in range(3)]
    _before_puts(store, lambda _: answers.pop() if answers else None)
    store.put_if_absent(COMMIT, b"x")
    assert store.read(COMMIT) == b"x"
    assert answers == []


def test_a_conflict_that_is_never_decided_is_a_failure(
    store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    _do_not_wait(monkeypatch)
    store.put_if_absent("_delta_log/probe.json", b"x")
    _before_puts(store, lambda _: _answer(409, "ConditionalRequestConflict"))
    with pytest.raises(StorageFailure, match="busy"):
        store.put_if_absent(COMMIT, b"x")


def test_a_reply_that_was_lost_is_asked_for_again_and_finds_the_object(
    store: S3Store, s3_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from botocore.exceptions import ReadTimeoutError

    _do_not_wait(monkeypatch)
    store.put_if_absent("_delta_log/probe.json", b"x")
    other = open_store(store.location.uri, {**s3_options, "token": "another client"})
    sent: list[bool] = []

    def land_but_lose_the_reply(_: object) -> None:
        if not sent:
            sent.append(True)
            other.put(COMMIT, b"ours")
            raise ReadTimeoutError(endpoint_url="http://s3")

    _before_puts(store, land_but_lose_the_reply)
    with pytest.raises(FileExistsError):
        store.put_if_absent(COMMIT, b"ours")
    assert store.read(COMMIT) == b"ours"


@pytest.mark.parametrize(("status", "code"), [(500, "InternalError"), (403, "AccessDenied")])
def test_any_other_answer_leaves_the_commit_open(
    store: S3Store, monkeypatch: pytest.MonkeyPatch, status: int, code: str
) -> None:
    _do_not_wait(monkeypatch)
    store.put_if_absent("_delta_log/probe.json", b"x")
    _before_puts(store, lambda _: _answer(status, code))
    with pytest.raises(StorageFailure, match=code) as caught:
        store.put_if_absent(COMMIT, b"x")
    assert caught.value.file == COMMIT
    assert not isinstance(caught.value, ConditionalPutUnsupported)


def test_a_server_that_is_not_there_is_a_failure_without_secrets(
    s3_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _do_not_wait(monkeypatch)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://user:passw0rd@127.0.0.1:{unused.getsockname()[1]}"
    options = {**s3_options, "AWS_ENDPOINT_URL": endpoint}
    store = open_store("s3://bucket/table", options)
    with pytest.raises(StorageFailure) as caught:
        store.read(COMMIT)
    shown = f"{caught.value} {caught.value!r} {caught.value.__cause__!r} {store!r} {store.location}"
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


def test_a_body_that_breaks_off_is_read_again(
    store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from botocore.exceptions import ResponseStreamingError
    from botocore.response import StreamingBody

    store.put("a", b"whole")
    read = StreamingBody.read
    broken: list[bool] = []

    def break_once(body: Any, *arguments: Any) -> bytes:
        if not broken:
            broken.append(True)
            raise ResponseStreamingError(error="broken off")
        return bytes(read(body, *arguments))

    monkeypatch.setattr(StreamingBody, "read", break_once)
    assert store.read("a") == b"whole"
    assert broken


def test_a_listing_asks_once_for_what_it_holds(store: S3Store, requests: list[str]) -> None:
    for version in range(5):
        store.put(f"_delta_log/{version:020d}.json", b"x")
    requests.clear()
    found = list(store.list_from("_delta_log", f"{3:020d}.json"))
    assert [meta.path for meta in found] == [f"_delta_log/{v:020d}.json" for v in (3, 4)]
    assert store.read(found[0].path) == b"x"
    assert requests == ["ListObjectsV2", "GetObject"]


def test_a_marker_of_an_empty_directory_is_no_file(store: S3Store) -> None:
    store._client.put_object(Bucket=store._bucket, Key="table/_delta_log/", Body=b"")
    store._client.put_object(Bucket=store._bucket, Key="table/", Body=b"")
    assert list(store.list_from("_delta_log")) == []
    assert list(store.list_recursive()) == []


def test_a_file_of_another_bucket_is_read_by_its_uri(
    store: S3Store, s3_options: dict[str, str]
) -> None:
    store._client.create_bucket(Bucket="another-bucket-of-a-clone")
    other = open_store("s3a://another-bucket-of-a-clone/t", s3_options)
    other.put("a b%20.bin", b"shallow")
    assert store.read(other.resolve_uri("a b%20.bin")) == b"shallow"
    assert store.open_input("s3://another-bucket-of-a-clone/t/a b%20.bin").read() == b"shallow"


def test_an_object_is_copied_by_the_storage_where_it_can(
    store: S3Store, s3_bucket: str, s3_options: dict[str, str], requests: list[str]
) -> None:
    target = S3Store(f"s3://{s3_bucket}/other", s3_options)
    target._client = store._client
    store.put("a b%20.bin", b"content")
    assert target.copy_object(store, "a b%20.bin", "new/a b%20.bin")
    assert requests == ["PutObject", "CopyObject"]
    assert target.read("new/a b%20.bin") == b"content"
    with pytest.raises(FileNotFoundError):
        target.copy_object(store, "nothing", "copy")
    # Another account may not read what this one may.
    stranger = S3Store(f"s3://{s3_bucket}/other", {**s3_options, "token": "other"})
    assert not stranger.copy_object(store, "a b%20.bin", "copy")
    refusal = _answer(400, "InvalidRequest")
    store._client.meta.events.register("before-send.s3.CopyObject", lambda **_: refusal)
    assert not target.copy_object(store, "a b%20.bin", "copy")
    assert target.head("copy") is None


def test_data_files_follow_credentials_that_were_renewed(store: S3Store) -> None:
    before = store._connection.file_system()
    assert store._connection.file_system() is before
    store._connection._session.set_credentials("renewed", "renewed", "renewed")
    assert store._connection.file_system() is not before
