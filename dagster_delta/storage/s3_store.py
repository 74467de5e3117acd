"""Tables on S3 and on storage with the same API.

A commit is one conditional put (`If-None-Match: *`): the storage decides which of two writers
commits, and no lock table is needed. AWS supports it. Some other providers refuse it, which is
reported, and some silently overwrite, which would lose commits. So a bucket of another provider is
probed before the first commit of a process (two small puts under a hidden name in `_delta_log` and
a delete). The option `conditional_put` skips the probe: `etag` says that the provider supports it,
`disabled` makes its tables read-only. The other options are described in `s3_options`.

Spec: Delta Log Entries (writers must never overwrite an entry).
"""

from __future__ import annotations

import errno
import random
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

import pyarrow as pa

from dagster_delta.errors import ConditionalPutUnsupported, InvalidArgument, StorageFailure
from dagster_delta.storage.locations import (
    check_relative_path,
    foreign_scheme,
    join_path,
    scheme_of,
)
from dagster_delta.storage.memory_limits import check_log_file_size
from dagster_delta.storage.object_store import ObjectMeta, ObjectStore, StoreLocation
from dagster_delta.storage.s3_connection import connect
from dagster_delta.storage.s3_options import parse_s3_options
from dagster_delta.storage.s3_requests import S3Requests, error_code, error_status
from dagster_delta.storage.s3_upload import S3Upload

__all__ = ["S3Store"]

_SCHEMES = frozenset({"s3", "s3a", "s3n"})
_DELETES_PER_REQUEST = 1000
_CONFLICT_ATTEMPTS = 8


class S3Store:
    """An `ObjectStore` over a prefix of a bucket.

    Args:
        location: `s3://bucket/prefix`; `s3a` and `s3n` mean the same. Not percent-decoded.
        options: see `s3_options`.

    Raises:
        InvalidArgument: the URI has no bucket, or an option is invalid.
        StorageFailure: the S3 client is not installed.
    """

    def __init__(self, location: str, options: Mapping[str, object] | None = None) -> None:
        self._scheme = scheme_of(location) or "s3"
        self._bucket, prefix = _split(location)
        self._prefix = f"{prefix}/" if prefix else ""
        self._root = f"{self._scheme}://{self._bucket}/{prefix}".rstrip("/")
        self._location = StoreLocation(uri=self._root, options=dict(options or {}))
        settings = parse_s3_options(options or {})
        self._conditional_put = settings.conditional_put
        self._connection = connect(settings)
        self._client = self._connection.client
        self._requests = S3Requests(self._root)

    def __repr__(self) -> str:
        return f"S3Store({self._root!r})"

    @property
    def location(self) -> StoreLocation:
        """The URI of the root, and the options."""
        return self._location

    @property
    def supports_put_if_absent(self) -> bool:
        """False if conditional puts are known to fail; unknown ones are probed at the commit."""
        seen = self._connection.buckets_probed.get(self._bucket, True)
        return seen and self._conditional_put != "disabled"

    def read(self, path: str) -> bytes:
        """The whole object in one request. Raises FileNotFoundError or StorageFailure."""
        return self._get(path, {})

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`, fewer at the end. Raises as `read` does."""
        if length <= 0:
            return b""
        return self._get(path, {"Range": f"bytes={offset}-{offset + length - 1}"})

    def head(self, path: str) -> ObjectMeta | None:
        """Size and time of the object, or None if it is absent."""
        bucket, key = self._find(path)

        def head() -> Mapping[str, Any]:
            answer = self._client.head_object(Bucket=bucket, Key=key)
            return self._requests.signed(answer, "LastModified")

        try:
            found = self._requests.ask(path, head)
        except FileNotFoundError:
            return None
        return ObjectMeta(path, found["ContentLength"], _milliseconds(found["LastModified"]))

    def list_from(self, directory: str, start: str = "") -> Iterator[ObjectMeta]:
        """The objects directly in `directory` named `>= start`, in name order."""
        folder = join_path(check_relative_path(directory), "")
        # S3 starts after the given name; this is the longest name that is surely before `start`.
        request = {"Delimiter": "/", "StartAfter": f"{self._prefix}{folder}{start[:-1]}"}
        for meta in self._list(folder, request if start else {"Delimiter": "/"}):
            if meta.path[len(folder) :] >= start:
                yield meta

    def list_recursive(self, directory: str = "") -> Iterator[ObjectMeta]:
        """Every object under `directory`."""
        return self._list(join_path(check_relative_path(directory), ""), {})

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Create the whole object, or leave an existing one unchanged.

        The client retries a request whose reply was lost, so `FileExistsError` may refer to the
        object that this call itself created.

        Raises:
            FileExistsError: the object exists.
            ConditionalPutUnsupported: the provider refuses conditional puts or ignores them.
            StorageFailure: no answer, or another answer; the object may exist.
        """
        key = self._key(path)
        self._require_conditional_puts()
        for attempt in range(_CONFLICT_ATTEMPTS):
            status = self._put_conditionally(key, path, data)
            if status == 200:
                return
            if status == 412:
                raise FileExistsError(errno.EEXIST, "An object is already there", path)
            # 409: another conditional put of this key is in progress, and neither has succeeded
            # yet.
            time.sleep(random.uniform(0, min(1.0, 0.05 * 2**attempt)))  # noqa: S311
        raise StorageFailure(
            "Other writers kept the object busy, and every attempt met a conflict; retry",
            table=self._root,
            file=path,
        )

    def put(self, path: str, data: bytes) -> None:
        """Create or replace the object."""
        self._requests.ask(path, partial(self._put, self._key(path), data))

    def delete(self, paths: Iterable[str]) -> None:
        """Remove the objects, a thousand per request; a missing object is no error."""
        keys = [self._key(path) for path in paths]
        for first in range(0, len(keys), _DELETES_PER_REQUEST):
            batch = [{"Key": key} for key in keys[first : first + _DELETES_PER_REQUEST]]
            answer = self._requests.ask("", partial(self._delete, batch))
            for refused in answer.get("Errors", ()):
                raise StorageFailure(
                    f"The storage refused to delete an object: {refused.get('Code')}",
                    table=self._root,
                    file=str(refused.get("Key", "")).removeprefix(self._prefix),
                )

    def open_input(self, path: str) -> pa.NativeFile:
        """The object as a `pyarrow.NativeFile` that fetches only the ranges it reads."""
        bucket, key = self._find(path)
        with self._requests.naming_failures(path):
            return self._connection.file_system().open_input_file(f"{bucket}/{key}")

    def open_output(self, path: str) -> pa.NativeFile:
        """A binary stream to write. The object appears when it is closed, also after an error. Its
        `write` and `close` raise StorageFailure.

        Raises:
            InvalidArgument: the path is outside of the table.
            StorageFailure: the storage refused.
        """
        # Before anything is written: the key is asked for again when the object is uploaded.
        self._key(path)
        upload = S3Upload(
            path, self._requests, put=self.put, open_stream=self._open_stream, head=self.head
        )
        return pa.PythonFile(upload, mode="w")

    def _open_stream(self, path: str) -> pa.NativeFile:
        file_system = self._connection.file_system()
        return file_system.open_output_stream(f"{self._bucket}/{self._key(path)}")

    def copy_object(self, source: ObjectStore, path: str, target: str) -> bool:
        """Make the storage copy an object. False if `source` is reached in another way than this
        store, or if the storage refuses, as it does for objects of more than 5 GB.

        Raises:
            FileNotFoundError: there is no such object.
        """
        if not isinstance(source, S3Store) or source.location.options != self._location.options:
            return False
        bucket, key = _split(source.resolve_uri(path))

        def copy() -> Mapping[str, Any]:
            answer = self._client.copy_object(
                Bucket=self._bucket,
                Key=self._key(target),
                CopySource={"Bucket": bucket, "Key": key},
            )
            return self._requests.signed(answer, "CopyObjectResult")

        try:
            self._requests.ask(source.resolve_uri(path), copy)
        except StorageFailure:
            return False
        return True

    def local_path(self, path: str) -> None:
        """None: the objects are not on a file system."""

    def resolve_uri(self, path: str) -> str:
        """The URI in the scheme of the root; an absolute URI is returned unchanged."""
        if scheme_of(path) is not None:
            return path
        bucket, key = self._find(path)
        return f"{self._scheme}://{bucket}/{key}".rstrip("/")

    def _key(self, path: str) -> str:
        return self._prefix + check_relative_path(path)

    def _find(self, path: str) -> tuple[str, str]:
        scheme = scheme_of(path)
        if scheme is None:
            # Some writers name a file of the same bucket by a path with a leading slash.
            return self._bucket, path[1:] if path.startswith("/") else self._key(path)
        if scheme not in _SCHEMES:
            raise foreign_scheme(path, scheme, table=self._root)
        return _split(path)

    def _get(self, path: str, headers: Mapping[str, str]) -> bytes:
        from botocore.exceptions import ClientError

        bucket, key = self._find(path)

        def get() -> bytes:
            try:
                answer = self._client.get_object(Bucket=bucket, Key=key, **headers)
            except ClientError as error:
                if error_status(error) == 416:  # the range starts at or after the end
                    return b""
                raise
            check_log_file_size(path, answer["ContentLength"])
            return self._requests.body(answer)

        return self._requests.ask(path, get)

    def _list(self, folder: str, request: Mapping[str, str]) -> Iterator[ObjectMeta]:
        token: dict[str, str] = {}
        while True:
            page = self._requests.ask(folder, partial(self._page, folder, {**request, **token}))
            for found in page.get("Contents", ()):
                key = found["Key"]
                # Consoles create an object with the name of an empty "directory".
                if not key.endswith("/"):
                    path, modified_ms = key[len(self._prefix) :], found["LastModified"]
                    yield ObjectMeta(path, found["Size"], _milliseconds(modified_ms))
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def _page(self, folder: str, request: Mapping[str, str]) -> Mapping[str, Any]:
        answer = self._client.list_objects_v2(
            Bucket=self._bucket, Prefix=self._prefix + folder, **request
        )
        return self._requests.signed(answer, "Name", "KeyCount", "IsTruncated")

    def _put(self, key: str, data: bytes, **conditions: str) -> int:
        answer = self._client.put_object(Bucket=self._bucket, Key=key, Body=data, **conditions)
        self._requests.signed(answer, "ETag")
        return 200

    def _delete(self, batch: list[dict[str, str]]) -> Mapping[str, Any]:
        answer = self._client.delete_objects(
            Bucket=self._bucket, Delete={"Objects": batch, "Quiet": True}
        )
        return self._requests.done(answer)

    def _put_conditionally(self, key: str, path: str, data: bytes) -> int:
        """200 if created, 412 if the object exists, 409 if another put of it is in progress."""
        from botocore.exceptions import ClientError, ParamValidationError

        def put() -> int:
            try:
                return self._put(key, data, IfNoneMatch="*")
            except ParamValidationError:
                raise self._unsupported("The installed botocore is too old for it") from None
            except ClientError as error:
                if error_status(error) in {409, 412}:
                    return error_status(error)
                if error_status(error) == 501 or error_code(error) == "NotImplemented":
                    self._connection.buckets_probed[self._bucket] = False
                    raise self._unsupported("The provider refuses it") from None
                raise

        return self._requests.ask(path, put)

    def _require_conditional_puts(self) -> None:
        if self._conditional_put == "disabled":
            raise self._unsupported("The storage option 'conditional_put' is 'disabled'")
        if self._connection.is_aws or self._conditional_put == "etag":
            return
        honoured = self._connection.buckets_probed.get(self._bucket)
        if honoured is None:
            honoured = self._probe()
            self._connection.buckets_probed[self._bucket] = honoured
        if not honoured:
            raise self._unsupported("The provider overwrites objects all the same")

    def _probe(self) -> bool:
        path = f"_delta_log/.{secrets.token_hex(8)}.tmp"
        key = self._key(path)
        try:
            self._put_conditionally(key, path, b"")
            return self._put_conditionally(key, path, b"") in {409, 412}
        finally:
            with suppress(StorageFailure):
                delete = self._client.delete_object
                self._requests.ask(path, partial(delete, Bucket=self._bucket, Key=key))

    def _unsupported(self, reason: str) -> ConditionalPutUnsupported:
        return ConditionalPutUnsupported(
            "Tables here are read-only: a commit is a put that must fail where the object exists "
            f"(If-None-Match: *). {reason}",
            table=self._root,
        )


def _split(location: str) -> tuple[str, str]:
    bucket, _, key = location.partition("://")[2].partition("/")
    if not bucket:
        raise InvalidArgument("An S3 URI has a bucket: s3://bucket/path", file=location)
    return bucket, key.strip("/")


def _milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
