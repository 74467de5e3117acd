"""Requests to S3: retried if an answer breaks off, and refused if the answer is not from S3.

The client itself retries a request that got no answer or a failure. It does not retry if the body
of an answer (also of an error) breaks off, and it does not detect the answer of a proxy or a login
page: a page with the status 200 looks like a successful put, or like an empty listing.
"""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from dagster_delta.errors import StorageFailure
from dagster_delta.protocol.checkpoint.parquet_reader import storage_failure

if TYPE_CHECKING:
    from botocore.exceptions import ClientError

__all__ = ["S3Requests", "error_code", "error_status"]

_ATTEMPTS = 5
_FIRST_PAUSE_SECONDS = 0.2
_MAX_PAUSE_SECONDS = 2.0

_FOREIGN = "the answer is not one of S3, so a proxy or a login page may answer in its place"

_Answer = TypeVar("_Answer")


class _BrokenAnswer(Exception):
    """An answer that broke off, or that is not from S3. A retry may get another."""


class S3Requests:
    """Sends requests for one table, and names it in errors.

    Args:
        root: URI of the table.
    """

    def __init__(self, root: str) -> None:
        self._root = root

    def ask(self, path: str, request: Callable[[], _Answer]) -> _Answer:
        """The answer to a request that may be retried.

        Raises:
            FileNotFoundError: there is no such object.
            StorageFailure: the storage refused or failed, or something other than S3 answered.
        """
        from botocore.parsers import ResponseParserError
        from urllib3.exceptions import HTTPError

        with self.naming_failures(path):
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    return request()
                except _BrokenAnswer as error:
                    reason = str(error)
                except (HTTPError, ResponseParserError) as error:
                    # Only the name of the error: the text may hold a part of the answer.
                    reason = type(error).__name__
                if attempt < _ATTEMPTS:
                    longest = min(_MAX_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** (attempt - 1))
                    time.sleep(random.uniform(0, longest))  # noqa: S311 - no secret depends on it
            raise self.failure(reason, path)
        raise AssertionError

    def signed(self, answer: Mapping[str, Any], *signs: str) -> Mapping[str, Any]:
        """The answer to a request inside `ask`, checked to have one of the fields that S3 sends."""
        if not any(sign in answer for sign in signs):
            raise _BrokenAnswer(_FOREIGN)
        return answer

    def done(self, answer: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer to a request inside `ask` for which S3 may send no field, checked not to be a
        web page.
        """
        headers = answer["ResponseMetadata"].get("HTTPHeaders", {})
        if str(headers.get("content-type", "")).startswith("text/html"):
            raise _BrokenAnswer(_FOREIGN)
        return answer

    def body(self, answer: Mapping[str, Any]) -> bytes:
        """The whole body of an answer inside `ask`."""
        from botocore.exceptions import BotoCoreError

        # `with` would give the raw stream, which checks no length and raises its own errors.
        with closing(self.signed(answer, "ETag", "LastModified")["Body"]) as body:
            try:
                return bytes(body.read())
            except BotoCoreError as error:
                raise _BrokenAnswer(type(error).__name__) from None

    @contextmanager
    def naming_failures(self, path: str) -> Iterator[None]:
        """Turns errors of the clients (botocore and Arrow) into errors that name the object."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except FileNotFoundError:
            raise self.missing(path) from None
        except ClientError as error:
            if error_code(error) in {"NoSuchKey", "404"}:
                raise self.missing(path) from None
            reason = f"{error_code(error)} (HTTP {error_status(error)})"
            raise self.failure(reason, path) from error
        except BotoCoreError as error:
            # Only the name of the error: the text of some holds the endpoint, which may hold
            # credentials.
            raise self.failure(type(error).__name__, path) from None
        except OSError as error:
            failure = storage_failure(error, table=self._root, file=path)
            raise (failure or self.failure(type(error).__name__, path)) from error

    def missing(self, path: str) -> FileNotFoundError:
        """The error for an object that does not exist."""
        return FileNotFoundError(errno.ENOENT, f"No such object in {self._root}", path)

    def failure(self, reason: str, path: str) -> StorageFailure:
        """The error for a request that failed."""
        return StorageFailure(
            f"The storage failed or refused: {reason}; check the bucket, the credentials, the "
            "region and the endpoint",
            table=self._root,
            file=path,
        )


def error_status(error: ClientError) -> int:
    """HTTP status of a botocore `ClientError`."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def error_code(error: ClientError) -> str:
    """Code of a botocore `ClientError`, as S3 spells it."""
    return str(error.response.get("Error", {}).get("Code", "unknown"))
