"""Tables on HDFS, through the client `hdfs-native`, which needs neither Java nor `libhdfs`.

Every file is written under a temporary name in its own directory, closed, and then renamed. For a
commit the rename must not overwrite, and the NameNode decides which of two writers commits. A crash
leaves at worst a hidden `.<token>.tmp`, which Delta readers ignore and VACUUM, or log clean-up,
removes.

The client reads `core-site.xml` and `hdfs-site.xml` in `HADOOP_CONF_DIR` (or in `etc/hadoop` below
`HADOOP_HOME`). Storage options:

- `config_dir`: another directory of these files;
- `kerberos_principal`, `kerberos_keytab`, `kerberos_cache`: an identity other than that of `kinit`;
- any setting of Hadoop, such as `dfs.client.use.datanode.hostname`, over those of the files.

Spec: Delta Log Entries (writers must never overwrite an entry).
"""

from __future__ import annotations

import functools
import posixpath
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from dagster_delta.errors import InvalidArgument, StorageFailure
from dagster_delta.memory_limits import check_log_file_size
from dagster_delta.storage.file_objects import PendingFile, RangeInput
from dagster_delta.storage.forks import check_not_forked, note_use
from dagster_delta.storage.locations import check_relative_path, join_path
from dagster_delta.storage.object_store import FileStore, ObjectMeta

if TYPE_CHECKING:
    from hdfs_native import Client, FileReader, FileStatus
    from hdfs_native._internal import RawFileWriter


_CLIENT_OPTIONS = frozenset(
    {"config_dir", "kerberos_principal", "kerberos_keytab", "kerberos_cache"}
)
# What the NameNode answers: the class of a Java exception, its text, and a stack trace.
_ANSWER = re.compile(r'\w+\("(?:[\w$]+\.)*([\w$]+)", "(.*?)(?:\\n|"\)$)', re.DOTALL)
_BELOW_A_FILE = "(is not a directory)"

_Answer = TypeVar("_Answer")


class HdfsStore(FileStore):
    """An `ObjectStore` over a directory of HDFS.

    Args:
        location: `hdfs://namenode:port/path`, `hdfs://nameservice/path` or `hdfs:///path`. Not
            percent-decoded.
        options: see the module.

    Raises:
        InvalidArgument: an option is unknown, or the location names no NameNode that is configured.
        StorageFailure: the client is not installed, or refuses its configuration.
    """

    def __init__(self, location: str, options: Mapping[str, object] | None = None) -> None:
        self._authority, path = _split_location(location)
        self._base = posixpath.normpath(f"/{path.strip('/')}").rstrip("/")
        super().__init__(f"{self._authority}{self._base}", options, {"hdfs"})
        self._settings = _parse_settings(self._location.options)
        self._client = _connect_client(self._authority, self._settings)

    def read(self, path: str) -> bytes:
        """The whole file. Raises FileNotFoundError or StorageFailure."""
        reader = self._open_reader(path)
        check_log_file_size(path, len(reader))
        return self._read_range(path, reader, 0, len(reader))

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`, fewer at the end. Raises as `read` does."""
        reader = self._open_reader(path)
        # The client panics at the end of a file.
        return self._read_range(path, reader, offset, min(length, len(reader) - offset))

    def head(self, path: str) -> ObjectMeta | None:
        """Size and time of the file, or None if it does not exist."""
        client, found = self._resolve_path(path)
        try:
            with self._name_failures(path):
                status = client.get_file_info(found)
        except FileNotFoundError:
            return None
        return None if status.isdir else _object_meta(path, status)

    def list_from(self, directory: str, start: str = "") -> Iterator[ObjectMeta]:
        """The files directly in `directory` named `>= start`, in name order.

        The whole directory is listed, a thousand files per request.
        """
        files = {
            name: status
            for name, status in self._list_directory(directory)
            if not status.isdir and name >= start
        }
        for name in sorted(files):
            yield _object_meta(join_path(directory, name), files[name])

    def list_recursive(self, directory: str = "") -> Iterator[ObjectMeta]:
        """Every file under `directory`."""
        pending = [directory]
        while pending:
            current = pending.pop()
            for name, status in self._list_directory(current):
                path = join_path(current, name)
                if status.isdir:
                    pending.append(path)
                else:
                    yield _object_meta(path, status)

    def delete(self, paths: Iterable[str]) -> None:
        """Remove the files; a missing file is not an error."""
        for path in paths:
            found = self._path_inside(path)
            with suppress(FileNotFoundError), self._name_failures(path):
                _repeat_once(partial(self._client.delete, found))

    def open_input(self, path: str) -> pa.NativeFile:
        """The file as a random-access `pyarrow.NativeFile`. Raises as `read` does."""
        reader = self._open_reader(path)
        fetch = partial(self._read_range, path, reader)
        return pa.PythonFile(RangeInput(len(reader), (), fetch), mode="r")

    def _uri_of(self, path: str) -> str:
        return self._authority + self._resolve_path(path)[1]

    def _path_inside(self, path: str) -> str:
        return f"{self._base}/{check_relative_path(path)}".rstrip("/") or "/"

    def _resolve_path(self, path: str) -> tuple[Client, str]:
        if not self._is_uri(path):
            # Some writers name a file outside the table by a path with a leading slash.
            return self._client, path if path.startswith("/") else self._path_inside(path)
        authority, found = _split_location(path)
        return _connect_client(authority, self._settings), found

    def _open_reader(self, path: str) -> FileReader:
        client, found = self._resolve_path(path)
        with self._name_failures(path):
            return client.read(found)

    def _read_range(self, path: str, reader: FileReader, offset: int, length: int) -> bytes:
        if length <= 0:
            return b""
        with self._name_failures(path):
            data: bytes = reader.read_range(offset, length)
        if len(data) != length:
            raise self._describe_failure(f"{len(data)} of {length} bytes came", path)
        return data

    def _list_directory(self, directory: str) -> list[tuple[str, FileStatus]]:
        """Names and facts of what is directly in a directory; nothing if there is none."""
        found = self._path_inside(directory)
        try:
            with self._name_failures(directory):
                listed = list(self._client.list_status(found))
        except FileNotFoundError:
            return []
        # A file lists as itself.
        return [
            (status.path.rpartition("/")[2], status) for status in listed if status.path != found
        ]

    def _begin(self, path: str, *, overwrite: bool) -> _HdfsFile:
        requests = partial(self._name_failures, path, reads=False)
        return _HdfsFile(self._client, self._path_inside(path), requests, overwrite=overwrite)

    @contextmanager
    def _name_failures(self, path: str, *, reads: bool = True) -> Iterator[None]:
        """Name the failures of requests.

        FileNotFoundError in requests that read or delete a file, FileExistsError if it exists,
        StorageFailure for any other failure.
        """
        check_not_forked()
        try:
            yield
        except FileExistsError:
            raise self._make_taken_error(path) from None
        except (OSError, RuntimeError, NotImplementedError) as error:
            missing = isinstance(error, FileNotFoundError | IsADirectoryError)
            if reads and (missing or _BELOW_A_FILE in str(error)):
                raise self._make_missing_error(path) from None
            raise self._describe_failure(_describe_reason(error), path) from None

    def _describe_failure(self, reason: str, path: str) -> StorageFailure:
        return StorageFailure(
            f"HDFS failed or refused: {reason}; check the NameNode, the permissions and the "
            "identity, then repeat the operation",
            table=self._root,
            file=path,
        )


class _HdfsFile(PendingFile):
    """`target` is an absolute path."""

    def __init__(
        self,
        client: Client,
        target: str,
        naming: Callable[[], AbstractContextManager[None]],
        *,
        overwrite: bool,
    ) -> None:
        from hdfs_native import WriteOptions

        super().__init__(naming)
        self._client, self._target, self._overwrite = client, target, overwrite
        directory = posixpath.dirname(target).rstrip("/")
        self._temporary = f"{directory}/.{secrets.token_hex(8)}.tmp"
        with naming():
            # Overwriting, as the request may be repeated. The NameNode creates missing directories
            # with the permissions of the one above.
            options = WriteOptions(overwrite=True)
            # The writer of `client.create` closes a file whose write failed when it is collected,
            # and waits for minutes if the NameNode is gone.
            self._writer: RawFileWriter = _repeat_once(
                lambda: client.inner.create(self._temporary, options)
            )

    def _write(self, data: memoryview) -> None:
        self._writer.write(bytes(data))

    def _publish(self) -> None:
        """FileExistsError: there is a file; it may be this one, if a reply was lost."""
        self._writer.close()
        try:
            _repeat_once(
                lambda: self._client.rename(self._temporary, self._target, self._overwrite)
            )
        except FileNotFoundError:
            # The rename was repeated as its reply was lost: the first one moved the file.
            self._client.get_file_info(self._target)
            if not self._overwrite:
                raise FileExistsError from None

    def _discard(self) -> None:
        # VACUUM removes the rest.
        with suppress(OSError, RuntimeError):
            self._client.delete(self._temporary)


def _repeat_once(request: Callable[[], _Answer]) -> _Answer:
    """What a request returns that changes something and may be made twice, as the connection may
    break before its reply. The client repeats by itself only what reads.
    """
    try:
        return request()
    except (FileNotFoundError, FileExistsError, IsADirectoryError):
        raise
    except OSError:
        return request()


def hadoop_properties(options: Mapping[str, object]) -> dict[str, str]:
    """The storage options that are settings of Hadoop, as texts."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if "." in name
    }


_Settings = tuple[tuple[str, str], ...]


def _parse_settings(options: Mapping[str, object]) -> _Settings:
    unknown = sorted(name for name in options if "." not in name and name not in _CLIENT_OPTIONS)
    if unknown:
        raise InvalidArgument(
            f"HDFS has no storage option {unknown[0]!r}: options are settings of Hadoop, such as "
            f"'dfs.client.use.datanode.hostname', and {', '.join(sorted(_CLIENT_OPTIONS))}"
        )
    named = {name: str(options[name]) for name in _CLIENT_OPTIONS & options.keys()}
    return tuple(sorted({**hadoop_properties(options), **named}.items()))


@functools.lru_cache(maxsize=64)
def _connect_client(authority: str, settings: _Settings) -> Client:
    """The client of a NameNode or a name service, cached: it holds connections and threads."""
    note_use()
    try:
        from hdfs_native import Client
    except ImportError as error:
        raise StorageFailure(
            "Tables on HDFS need its client: pip install 'dagster-delta-protocol[hdfs]'"
        ) from error
    properties = {name: value for name, value in settings if "." in name}
    named: dict[str, Any] = {name: value for name, value in settings if "." not in name}
    try:
        return Client(f"{authority}/", properties, **named)
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidArgument(
            "The client of HDFS refuses the location or its configuration: "
            f"{_describe_reason(error)}; name the NameNode and its port "
            "(hdfs://namenode:8020/path), or set HADOOP_CONF_DIR to the directory of "
            "core-site.xml and hdfs-site.xml",
            table=authority,
        ) from None


def _split_location(location: str) -> tuple[str, str]:
    rest = location.partition(":")[2]
    if not rest.startswith("//"):
        return "hdfs://", rest
    authority, slash, path = rest[2:].partition("/")
    return f"hdfs://{authority}", f"{slash}{path}"


def _describe_reason(error: Exception) -> str:
    if isinstance(error, OSError) or (answer := _ANSWER.match(str(error))) is None:
        return str(error).partition("\n")[0]
    return f"{answer[1]}: {answer[2]}"


def _object_meta(path: str, status: FileStatus) -> ObjectMeta:
    return ObjectMeta(path, status.length, status.modification_time)
