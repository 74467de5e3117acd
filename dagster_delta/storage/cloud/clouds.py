"""The clouds: all that is different among them, by the scheme of a URI.

A further cloud is a module beside `s3`, an entry here, and its typed options in
`orchestration.storage_options`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from dagster_delta.storage.cloud import azure, gcs, s3
from dagster_delta.storage.cloud.client import Bucket, CloudClient
from dagster_delta.storage.cloud.options import CloudOptions


class Cloud(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One cloud."""

    name: str
    """Also the extra with its packages."""
    schemes: tuple[str, ...]
    """Schemes of its URIs."""
    parse: Callable[[Mapping[str, object]], CloudOptions]
    """Reads the storage options of a user. Raises InvalidArgument."""
    connect: Callable[[CloudOptions, Bucket], CloudClient]
    """Makes the client of a bucket."""
    hadoop_settings: Callable[[CloudOptions, str], Mapping[str, str] | None]
    """The settings of Hadoop for the options and the URI of a table; None if Hadoop would reach the
    storage in another way, or as another identity."""
    hadoop_patience: Mapping[str, str]
    """How often Hadoop repeats a request that fails. Its own settings wait for a storage that is
    away for minutes, and for hours if it answers 503: the pauses double up to twenty times."""


_CLOUDS = (
    Cloud(
        name="s3",
        schemes=("s3", "s3a", "s3n"),
        parse=s3.parse_s3,
        connect=s3.connect_s3,
        hadoop_settings=s3.s3a_settings,
        hadoop_patience=s3.S3A_PATIENCE,
    ),
    Cloud(
        name="gcs",
        schemes=("gs", "gcs"),
        parse=gcs.parse_gcs,
        connect=gcs.connect_gcs,
        hadoop_settings=gcs.connector_settings,
        hadoop_patience={},
    ),
    Cloud(
        name="azure",
        schemes=("az", "azure", "abfs", "abfss", "wasb", "wasbs"),
        parse=azure.parse_azure,
        connect=azure.connect_azure,
        hadoop_settings=azure.abfs_settings,
        hadoop_patience=azure.ABFS_PATIENCE,
    ),
)
CLOUDS = {scheme: cloud for cloud in _CLOUDS for scheme in cloud.schemes}
"""By scheme."""
