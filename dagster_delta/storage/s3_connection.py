"""Clients of one S3 account: botocore for the log, the AWS SDK inside Arrow for data files.

A log takes many small requests whose exact answers matter (412, 409 and a timeout differ), and
botocore returns them unchanged. Data files are large, and Arrow reads and writes them outside
Python. Both use the same identity: Arrow gets the credentials that botocore found, and gets them
again each time botocore has refreshed them.
"""

from __future__ import annotations

import functools
import os
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dagster_delta.errors import InvalidArgument, StorageFailure
from dagster_delta.storage.s3_options import S3Settings

if TYPE_CHECKING:
    from botocore.client import BaseClient
    from botocore.credentials import ReadOnlyCredentials
    from botocore.session import Session
    from pyarrow.fs import S3FileSystem

__all__ = ["S3Connection", "connect"]

_ATTEMPTS = 5
"""How often either client tries a request before it reports a failure."""


class S3Connection:
    """The clients for one account and endpoint. Thread-safe.

    Args:
        settings: from the storage options.

    Raises:
        StorageFailure: the S3 client is not installed.
        InvalidArgument: the profile or the endpoint is invalid.
    """

    def __init__(self, settings: S3Settings) -> None:
        self._settings = settings
        self._session = _session(settings)
        self.client = _create_client(self._session, settings)
        """A `botocore` client of S3."""
        self._file_system: tuple[object, S3FileSystem] | None = None
        self._lock = threading.Lock()
        self.buckets_probed: dict[str, bool] = {}
        """Bucket → whether a probe showed that it honours conditional puts."""

    @property
    def is_aws(self) -> bool:
        """Whether requests go to AWS and not to another provider."""
        host = urlsplit(self.client.meta.endpoint_url).hostname or ""
        return host.endswith((".amazonaws.com", ".amazonaws.com.cn"))

    def file_system(self) -> S3FileSystem:
        """A `pyarrow.fs.S3FileSystem` with the current credentials."""
        credentials = None if self._settings.anonymous else self._session.get_credentials()
        frozen = None if credentials is None else credentials.get_frozen_credentials()
        with self._lock:
            if self._file_system is None or self._file_system[0] != frozen:
                self._file_system = (frozen, self._create_file_system(frozen))
            return self._file_system[1]

    def _create_file_system(self, credentials: ReadOnlyCredentials | None) -> S3FileSystem:
        try:
            from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem
        except ImportError as error:
            raise StorageFailure(
                "This build of pyarrow has no S3 support; install the full package"
            ) from error
        arguments: dict[str, object] = {
            "region": self.client.meta.region_name,
            # It waits longer after each attempt, with random jitter.
            "retry_strategy": AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
        }
        if credentials is None:
            arguments["anonymous"] = True
        else:
            arguments["access_key"] = credentials.access_key
            arguments["secret_key"] = credentials.secret_key
            arguments["session_token"] = credentials.token
        if not self.is_aws:
            endpoint = urlsplit(self.client.meta.endpoint_url)
            arguments["scheme"] = endpoint.scheme
            arguments["endpoint_override"] = endpoint.netloc + endpoint.path.rstrip("/")
            arguments["force_virtual_addressing"] = self._settings.virtual_hosted
        if self._settings.ca_bundle is not None:
            arguments["tls_ca_file_path"] = self._settings.ca_bundle
        try:
            # A file of one part then takes one request instead of three.
            return S3FileSystem(**arguments, allow_delayed_open=True)
        except TypeError:  # pyarrow 18 does not have this argument
            return S3FileSystem(**arguments)


@functools.lru_cache(maxsize=16)
def connect(settings: S3Settings) -> S3Connection:
    """The connection for these settings; it is cached, because creating a client takes 30 ms."""
    return S3Connection(settings)


def _session(settings: S3Settings) -> Session:
    try:
        import botocore.session
    except ImportError as error:
        raise StorageFailure(
            "Tables on S3 need the S3 client: pip install 'dagster-delta-protocol[s3]'"
        ) from error
    session = botocore.session.Session(profile=settings.profile)
    if settings.access_key is not None:
        session.set_credentials(settings.access_key, settings.secret_key, settings.session_token)
    return session


def _create_client(session: Session, settings: S3Settings) -> BaseClient:
    from botocore import UNSIGNED
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    endpoint = (
        settings.endpoint
        or os.environ.get("AWS_ENDPOINT_URL_S3")
        or os.environ.get("AWS_ENDPOINT_URL")
    )
    config: dict[str, Any] = {
        "retries": {"mode": "standard", "max_attempts": _ATTEMPTS},
        "max_pool_connections": 64,
        "connect_timeout": 10,
        "read_timeout": 60,
    }
    if settings.virtual_hosted:
        config["s3"] = {"addressing_style": "virtual"}
    elif endpoint is not None:
        # Other providers rarely have a host name per bucket, and many do not support the newer
        # checksums.
        config["s3"] = {"addressing_style": "path"}
        config["request_checksum_calculation"] = "when_required"
        config["response_checksum_validation"] = "when_required"
    if settings.anonymous:
        config["signature_version"] = UNSIGNED
    try:
        region = settings.region or session.get_config_variable("region") or "us-east-1"
        return session.create_client(
            "s3",
            region_name=region,
            endpoint_url=endpoint,
            config=Config(**config),
            verify=settings.ca_bundle,
        )
    except (BotoCoreError, ValueError) as error:
        raise InvalidArgument(
            f"The S3 options or the AWS configuration make no sense ({type(error).__name__}); "
            "check the profile, the region and the endpoint"
        ) from None
