"""Tables on S3 and storage with its API, Google Cloud Storage, and Azure.

A commit is one conditional put, which fails where the object exists: the storage decides which of
two writers commits, and no lock table is needed. The clouds themselves support it. Some other
providers with the API of one refuse it, which is reported, and some silently overwrite, which would
lose commits. So a bucket at another endpoint is probed before the first commit of a process (two
small puts under a hidden name in `_delta_log` and a delete). The option `conditional_put` skips the
probe: `etag` says that the provider supports it, `disabled` makes its tables read-only. The other
options are described in `s3`, `gcs` and `azure`.

Spec: Delta Log Entries (writers must never overwrite an entry).
"""

from __future__ import annotations

import random
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import obstore
import pyarrow as pa
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError

from dagster_delta.errors import ConditionalPutUnsupported, InvalidArgument, StorageFailure
from dagster_delta.memory_limits import check_log_file_size
from dagster_delta.storage.cloud.azure import service_of
from dagster_delta.storage.cloud.client import Bucket, CloudClient, connect
from dagster_delta.storage.cloud.clouds import CLOUDS
from dagster_delta.storage.cloud.ranges import CloudRanges
from dagster_delta.storage.cloud.requests import BrokenAnswer, CloudRequests, refusal_of
from dagster_delta.storage.file_objects import PendingFile, RangeInput
from dagster_delta.storage.locations import check_relative_path, join_path, scheme_of
from dagster_delta.storage.object_store import FetchBudget, ObjectMeta, ObjectStore, RootedStore

if TYPE_CHECKING:
    from obstore import GetOptions

# Characters that would end the name of the host in a URL, or are none of a name.
_NO_NAME = re.compile(r"[?#\\\x00-\x1f]")
_NO_HOST = re.compile(r"[^A-Za-z0-9._:-]")
_CONFLICT_ATTEMPTS = 8
_CONCURRENT_DELETES = 8
_PART_BYTES = 10 * 1024 * 1024
_PUT_BYTES = 5 * 1024 * 1024
"""Objects up to this size are put in one request."""
_END_BYTES = 64 * 1024
"""Bytes that opening an object fetches: small objects whole, and the footers of others."""
_RANGE_NOT_SATISFIABLE = 416
_PAGE = 1000
"""Entries that clouds return at most, or a multiple of it."""
_LAST_CHARACTER = "\U0010ffff"
"""Comes after all others."""
# Codes of the status 409: the object exists, and another put of it is in progress.
_EXISTS = frozenset({"BlobAlreadyExists"})
_BUSY = frozenset({"ConditionalRequestConflict", "OperationAborted"})


class CloudStore(RootedStore):
    """An `ObjectStore` over a prefix of a bucket or container.

    Args:
        location: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix` or
            `abfss://container@account.dfs.core.windows.net/prefix`. Not percent-decoded.
        options: see `s3`, `gcs`, `azure`.

    Raises:
        InvalidArgument: the URI has no bucket, or an option is invalid.
    """

    def __init__(self, location: str, options: Mapping[str, Any] | None = None) -> None:
        scheme = scheme_of(location) or ""
        self._cloud = CLOUDS[scheme]
        self._bucket, key = _split_location(location)
        self._prefix = f"{key}/" if key else ""
        authority = location.partition("://")[2].partition("/")[0]
        self._authority = f"{scheme}://{authority}"
        super().__init__(f"{self._authority}/{key}".rstrip("/"), options, self._cloud.schemes)
        self._options = self._cloud.parse(options or {})
        self._client = connect(self._cloud.connect, self._options, self._bucket)
        self._requests = CloudRequests(self._root)

    @property
    def supports_put_if_absent(self) -> bool:
        """False if conditional puts are known to fail; unknown ones are probed at the commit."""
        seen = self._client.honours_conditions is not False
        return seen and self._options.get("conditional_put") != "disabled"

    def read(self, path: str) -> bytes:
        """The whole object in one request. Raises FileNotFoundError or StorageFailure."""
        return bytes(self._get_range(path, {})[1])

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`, fewer at the end. Raises as `read` does."""
        if length <= 0:
            return b""
        return bytes(self._get_range(path, {"range": (offset, offset + length)})[1])

    def head(self, path: str) -> ObjectMeta | None:
        """Size and time of the object, or None if it is absent."""
        client, key = self._resolve_path(path)
        try:
            found = self._requests.ask(path, lambda: _check_answer(obstore.head(client.store, key)))
        except FileNotFoundError:
            return None
        return _object_meta(path, found)

    def list_from(self, directory: str, start: str = "") -> Iterator[ObjectMeta]:
        """The objects directly in `directory` named `>= start`, in name order.

        On Azure, the request starts at the first name of the directory where the service does not
        support another start.
        """
        # The client lists everything below a prefix, from an offset; it has no listing of one
        # directory that starts at an offset. So names in sub-directories are skipped, and if there
        # are many, the listing starts again after their directory.
        folder = join_path(check_relative_path(directory), "")
        base = self._prefix + folder
        # The listing starts after the given name: this one is surely before it. The client refuses
        # "." as a name.
        after: str | None = base + start[:-1].rstrip(".")
        while after is not None:
            found, after = self._list_entries(folder, after), None
            skipped = 0
            for entry in found:
                name = entry["path"][len(base) :]
                inner, slash, _ = name.partition("/")
                if not slash and name >= start and self._is_object(folder, entry):
                    yield _object_meta(folder + name, entry)
                skipped += bool(slash)
                if skipped >= _PAGE:
                    after = f"{base}{inner}/{_LAST_CHARACTER}"
                    break

    def list_recursive(self, directory: str = "") -> Iterator[ObjectMeta]:
        """Every object under `directory`."""
        folder = join_path(check_relative_path(directory), "")
        for entry in self._list_entries(folder, self._prefix + folder):
            if self._is_object(folder, entry):
                yield _object_meta(entry["path"][len(self._prefix) :], entry)

    def _list_entries(self, folder: str, after: str) -> Iterator[Any]:
        """What the client lists in a folder after a key. Only the first request is repeated if its
        answer breaks off.
        """

        def begin() -> tuple[Any, Any]:
            pages = obstore.list(
                self._client.store,
                (self._prefix + folder).rstrip("/") or None,
                offset=after or None,
                chunk_size=_PAGE,
            )
            return pages, next(pages, ())

        pages, page = self._requests.ask(folder, begin)
        while page:
            # Some services ignore the offset.
            yield from (entry for entry in page if entry["path"] > after)
            with self._requests.naming_failures(folder):
                page = next(pages, ())

    def _is_object(self, folder: str, entry: Any) -> bool:  # noqa: ANN401
        """Whether an entry without bytes is an object: consoles and file systems create objects
        that stand for a directory, with a slash at the end of the name, which the client omits.
        """
        key = entry["path"]
        if entry["size"] or key == (self._prefix + folder).rstrip("/"):
            return bool(entry["size"])
        path = key[len(self._prefix) :]
        try:
            self._requests.ask(path, partial(obstore.head, self._client.store, key))
        except FileNotFoundError:
            return False
        return True

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Create the whole object, or leave an existing one unchanged.

        The client retries a request whose reply was an error of the server, so `FileExistsError`
        may refer to the object that this call itself created.

        Raises:
            FileExistsError: the object exists.
            ConditionalPutUnsupported: the provider refuses conditional puts or ignores them.
            StorageFailure: no answer, or another answer; the object may exist.
        """
        key = self._key_of(path)
        self._require_conditional_puts()
        if not self._create_object(key, path, data):
            raise self._make_taken_error(path)

    def put(self, path: str, data: bytes) -> None:
        """Create or replace the object."""
        key = self._key_of(path)
        self._requests.ask(
            path, lambda: obstore.put(self._client.store, key, data, use_multipart=False)
        )

    def delete(self, paths: Iterable[str]) -> None:
        """Remove the objects, many per request if the cloud can; a missing one is not an error."""
        keys = [self._key_of(path) for path in paths]
        if not keys:
            return
        try:
            self._requests.ask("", lambda: obstore.delete(self._client.store, keys))
        except FileNotFoundError:
            # Some clouds stop at an object that is missing.
            with ThreadPoolExecutor(min(_CONCURRENT_DELETES, len(keys))) as pool:
                list(pool.map(self._delete_one, keys))

    def _delete_one(self, key: str) -> None:
        with suppress(FileNotFoundError):
            path = key[len(self._prefix) :]
            self._requests.ask(path, lambda: obstore.delete(self._client.store, key))

    def open_input(self, path: str, size_bytes: int | None = None) -> pa.NativeFile:
        """The object as a `pyarrow.NativeFile` that fetches only the ranges it reads. Opening it
        fetches its end, where a Parquet file has its footer.

        A wrong size costs one more request.
        """
        client, _ = self._resolve_path(path)
        start, end = 0, _END_BYTES
        if client.has_suffix_ranges:
            # Of a small object, it is all of it.
            size_bytes, data = self._get_range(path, {"range": {"suffix": _END_BYTES}})
            start = size_bytes - len(data)
        else:
            if size_bytes is not None:
                start, end = max(0, size_bytes - _END_BYTES), max(1, size_bytes)
            size_bytes, data = self._get_range(path, {"range": (start, end)})
            if start and not data:
                # The object ends before.
                return self.open_input(path)
        held = [(start, data)]
        return pa.PythonFile(RangeInput(size_bytes, held, partial(self.read_range, path)), mode="r")

    def open_ranges(
        self,
        path: str,
        ranges: Sequence[tuple[int, int]],
        size_bytes: int,
        budget: FetchBudget | None = None,
    ) -> pa.NativeFile:
        """The object as a `pyarrow.NativeFile` whose given ranges are fetched ahead of reads."""

        def fetch(start: int, length: int) -> memoryview:
            return self._get_range(path, {"range": (start, start + length)})[1]

        opened = CloudRanges(size_bytes, ranges, fetch, budget or FetchBudget(size_bytes))
        return pa.PythonFile(opened, mode="r")

    def open_output(self, path: str) -> PendingFile:
        """A file to write. The object appears when it is closed. Its `write` and `close` raise
        StorageFailure.
        """
        return _CloudFile(
            partial(self._requests.naming_failures, path),
            partial(self.put, path),
            partial(
                obstore.open_writer, self._client.store, self._key_of(path), buffer_size=_PART_BYTES
            ),
        )

    def copy_object(self, source: ObjectStore, path: str, target: str) -> bool:
        """Make the storage copy an object. False if `source` is reached in another way than this
        store or has another bucket, or if the storage refuses, as S3 does for more than 5 GB.
        """
        if not isinstance(source, CloudStore) or source.location.options != self._location.options:
            return False
        client, key = source._resolve_path(path)  # noqa: SLF001 - of the same class
        copied = self._key_of(target)
        if client is not self._client:
            return False

        def copy() -> None:
            obstore.copy(client.store, key, copied)
            # The client takes any answer for a success, also that of a proxy.
            try:
                _check_answer(obstore.head(client.store, copied))
            except FileNotFoundError:
                raise BrokenAnswer(BrokenAnswer.FOREIGN) from None

        try:
            self._requests.ask(source.resolve_uri(path), copy)
        except StorageFailure:
            return False
        return True

    def _uri_of(self, path: str) -> str:
        key = path[1:] if path.startswith("/") else self._key_of(path)
        return f"{self._authority}/{key}".rstrip("/")

    def _key_of(self, path: str) -> str:
        return self._prefix + check_relative_path(path)

    def _resolve_path(self, path: str) -> tuple[CloudClient, str]:
        if not self._is_uri(path):
            # Some writers name a file of the same bucket by a path with a leading slash.
            return self._client, path[1:] if path.startswith("/") else self._key_of(path)
        bucket, key = _split_location(path)
        if service_of(bucket.account) != service_of(self._bucket.account):
            # Each request carries the credentials of the table.
            raise StorageFailure(
                "The file lies with another service than its table, which would be sent the "
                "credentials of the table; open a table whose files are all in one Azure cloud",
                table=self._root,
                file=path,
            )
        if bucket.name == self._bucket.name and bucket.account is None:
            bucket = self._bucket
        return connect(self._cloud.connect, self._options, bucket), key

    def _get_range(self, path: str, options: GetOptions) -> tuple[int, memoryview]:
        client, key = self._resolve_path(path)

        def get() -> tuple[int, memoryview]:
            try:
                answer = obstore.get(client.store, key, options=options)
            except GenericError as error:
                refusal = refusal_of(error)
                if refusal is not None and refusal.status == _RANGE_NOT_SATISFIABLE:
                    return 0, memoryview(b"")  # the range starts at or after the end
                # Some services answer a range of an empty object without its range.
                if "non-partial" in str(error) and obstore.head(client.store, key)["size"] == 0:
                    return 0, memoryview(b"")
                raise
            meta = _check_answer(answer.meta)
            first, end = answer.range
            check_log_file_size(path, end - first)
            data = memoryview(answer.bytes())
            if len(data) != end - first:
                raise BrokenAnswer("the answer is shorter than it says")
            return meta["size"], data

        return self._requests.ask(path, get)

    def _create_object(self, key: str, path: str, data: bytes) -> bool:
        for attempt in range(_CONFLICT_ATTEMPTS):
            created = self._try_to_create(key, path, data)
            if created is not None:
                return created
            # Another conditional put of this key is in progress, and neither has succeeded yet.
            time.sleep(random.uniform(0, min(1.0, 0.05 * 2**attempt)))  # noqa: S311
        raise StorageFailure(
            "Other writers kept the object busy, and every attempt was told to come back; retry",
            table=self._root,
            file=path,
        )

    def _try_to_create(self, key: str, path: str, data: bytes) -> bool | None:
        """Whether the object was created; None if that is not decided yet."""
        with self._requests.naming_failures(path):
            try:
                obstore.put(self._client.store, key, data, mode="create", use_multipart=False)
            except AlreadyExistsError as error:
                refusal = refusal_of(error)
                if refusal is None or refusal.status == 412 or refusal.code in _EXISTS:
                    return False
                if refusal.code in _BUSY:
                    return None
                raise self._requests.failure(str(refusal), path) from None
            except BaseError as error:
                refusal = refusal_of(error)
                if refusal is None or (refusal.code != "NotImplemented" and refusal.status != 501):
                    raise
                self._client.honours_conditions = False
                raise self._refuse_conditional_put("The provider refuses it") from None
            except FileNotFoundError as error:
                raise self._requests.failure(str(refusal_of(error)), path) from None
        return True

    def _require_conditional_puts(self) -> None:
        if self._options.get("conditional_put") == "disabled":
            raise self._refuse_conditional_put("The storage option 'conditional_put' is 'disabled'")
        if self._client.is_trusted or self._options.get("conditional_put") == "etag":
            return
        if self._client.honours_conditions is None:
            self._client.honours_conditions = self._probe_conditional_put()
        if not self._client.honours_conditions:
            raise self._refuse_conditional_put("The provider overwrites objects all the same")

    def _probe_conditional_put(self) -> bool:
        path = f"_delta_log/.{secrets.token_hex(8)}.tmp"
        key = self._key_of(path)
        try:
            self._create_object(key, path, b"")
            return not self._create_object(key, path, b"")
        finally:
            with suppress(StorageFailure):
                self._delete_one(key)

    def _refuse_conditional_put(self, reason: str) -> ConditionalPutUnsupported:
        return ConditionalPutUnsupported(
            "Tables here are read-only: a commit is a put that must fail where the object exists "
            f"(If-None-Match: *). {reason}",
            table=self._root,
        )


class _CloudFile(PendingFile):
    """A small object is put in one request; `open_writer` begins the upload of another one."""

    def __init__(
        self,
        naming: Callable[[], AbstractContextManager[None]],
        put: Callable[[bytes], None],
        open_writer: Callable[[], Any],
    ) -> None:
        super().__init__(naming)
        self._put, self._open_writer = put, open_writer
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._writer: Any = None

    def _write(self, data: memoryview) -> None:
        self._held.append(bytes(data))
        self._held_bytes += data.nbytes
        if self._held_bytes > _PUT_BYTES:
            self._upload_held()

    def _upload_held(self) -> None:
        if self._writer is None:
            self._writer = self._open_writer()
        for piece in self._held:
            self._writer.write(piece)
        self._held, self._held_bytes = [], 0

    def _publish(self) -> None:
        if self._writer is None:
            held, self._held = self._held, []
            self._put(b"".join(held))
            return
        self._upload_held()
        writer, self._writer = self._writer, None
        writer.close()

    def _discard(self) -> None:
        if self._writer is not None:
            # The parts that were uploaded are deleted.
            with suppress(Exception):
                self._writer.__exit__(GeneratorExit, GeneratorExit(), None)


def _object_meta(path: str, found: Any) -> ObjectMeta:  # noqa: ANN401
    return ObjectMeta(path, found["size"], round(found["last_modified"].timestamp() * 1000))


def _check_answer(meta: Any) -> Any:  # noqa: ANN401
    if meta["e_tag"] is None and meta["last_modified"].timestamp() == 0:
        raise BrokenAnswer(BrokenAnswer.FOREIGN)
    return meta


def _split_location(location: str) -> tuple[Bucket, str]:
    authority, _, key = location.partition("://")[2].partition("/")
    name, _, account = authority.partition("@")
    if not name:
        raise InvalidArgument(
            "A URI in the cloud names a bucket or container: s3://bucket/path, gs://bucket/path, "
            "abfss://container@account.dfs.core.windows.net/path",
            file=location,
        )
    if _NO_NAME.search(name) or _NO_HOST.search(account):
        raise InvalidArgument(
            "The name of a bucket, a container or an account has a character that no such name has",
            file=location,
        )
    return Bucket(name, account or None), key.strip("/")
