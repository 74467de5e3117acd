"""Requests to cloud storage: retried if an answer breaks off, and named in errors.

The client retries a request that got no answer or a failure of the server. It does not retry one
whose answer breaks off outside of an object's body, nor a request that may have taken effect. And
it takes the answer of a proxy or a login page for an object, but such an object has no ETag.
"""

from __future__ import annotations

import errno
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar, TypeVar

import msgspec
from obstore.exceptions import BaseError, GenericError, InvalidPathError

from dagster_delta.errors import DeltaError, InvalidArgument, StorageFailure
from dagster_delta.storage.forks import check_not_forked

_ATTEMPTS = 5
_FIRST_PAUSE_SECONDS = 0.2
_MAX_PAUSE_SECONDS = 2.0

_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_CODE = re.compile(r"<Code>\s*(\w{1,80})\s*</Code>")
_REPEATED = re.compile(r"after [1-9]\d* retries")
_NO_CREDENTIALS = re.compile(r"no credentials: ([^\n]*)")
_PANICS = "pyo3_runtime"
_PANICKED = (
    "the client cannot send such a request, so the endpoint or the credentials have a character, "
    "as a line break, that none may have"
)
# Codes of the status 404 that are about something else than the object.
_NO_PLACE = frozenset({"NoSuchBucket", "NoSuchUpload", "ContainerNotFound", "FilesystemNotFound"})

_Answer = TypeVar("_Answer")


class BrokenAnswer(Exception):
    """An answer that broke off, or that is not from the storage. A retry may get another."""

    FOREIGN: ClassVar[str] = (
        "the answer is not one of the storage, so a proxy or a login page may answer in its place"
    )


class Refusal(msgspec.Struct, frozen=True):
    """What an answer of the storage says, as far as it may be shown."""

    status: int
    code: str

    def __str__(self) -> str:
        return f"{self.code} (HTTP {self.status})"


def refusal_of(error: BaseException) -> Refusal | None:
    """The answer that an error of the client reports; None if there was no answer."""
    text = str(error)
    status = _STATUS.search(text)
    if status is None:
        return None
    code = _CODE.search(text)
    return Refusal(int(status[1]), code[1] if code else "no code")


class CloudRequests:
    """Sends requests for one table, and names it in errors."""

    def __init__(self, root: str) -> None:
        self._root = root

    def ask(self, path: str, request: Callable[[], _Answer]) -> _Answer:
        """The answer to a request that may be repeated."""
        with self.naming_failures(path):
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    return request()
                except Exception as error:
                    if attempt == _ATTEMPTS or not _may_differ(error):
                        raise
                longest = min(_MAX_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** (attempt - 1))
                time.sleep(random.uniform(0, longest))  # noqa: S311 - no secret depends on it
        raise AssertionError

    @contextmanager
    def naming_failures(self, path: str) -> Iterator[None]:
        """Turns errors of the client into errors that name the object, and show no secret.

        The text of the client's errors holds URLs, which may hold a signature or a password.
        """
        check_not_forked()
        try:
            yield
        except DeltaError:
            raise
        except BrokenAnswer as error:
            raise self.failure(str(error), path) from None
        except FileNotFoundError as error:
            refusal = refusal_of(error)
            if refusal is not None and refusal.code in _NO_PLACE:
                raise self.failure(str(refusal), path) from None
            raise FileNotFoundError(errno.ENOENT, f"No such object in {self._root}", path) from None
        except (BaseError, OSError) as error:
            raise self.failure(_describe_reason(error), path) from None
        except ValueError:
            raise InvalidArgument(
                "The name has a part that is empty, '.' or '..', or a control character: the "
                "client of cloud storage cannot request it",
                table=self._root,
                file=path,
            ) from None
        except BaseException as error:
            if type(error).__module__ != _PANICS:
                raise
            # It is not an Exception, and would end the process.
            raise self.failure(_PANICKED, path) from None

    def failure(self, reason: str, path: str) -> StorageFailure:
        """The error for a request that failed."""
        return StorageFailure(
            f"The storage failed or refused: {reason}; check the bucket, the credentials, the "
            "region and the endpoint",
            table=self._root,
            file=path,
        )


def _may_differ(error: Exception) -> bool:
    """Whether a repeated request may get another answer than this error."""
    if isinstance(error, BrokenAnswer):
        return True
    is_unclear = isinstance(error, (GenericError, OSError)) and not isinstance(
        error, (FileNotFoundError, InvalidPathError)
    )
    # The client has repeated a request that was refused or got no answer.
    text = str(error)
    return is_unclear and not _STATUS.search(text) and not _REPEATED.search(text)


def _describe_reason(error: Exception) -> str:
    refusal = refusal_of(error)
    if refusal is not None:
        return str(refusal)
    text = str(error)
    credentials = _NO_CREDENTIALS.search(text)
    if credentials:
        return f"no credentials were found ({credentials[1]})"
    if isinstance(error, InvalidPathError):
        return "an object here has a name with an empty part or a control character"
    if "Etag" in text or "invalid list response" in text or "invalid multipart" in text:
        return BrokenAnswer.FOREIGN
    if "non-partial" in text:
        return "the provider ignores ranges, and sends whole objects"
    if "redirect" in text:
        return "it sent the request elsewhere, so the bucket is in another region"
    return f"no answer ({type(error).__name__})"
