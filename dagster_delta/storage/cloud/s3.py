"""Tables on S3 and storage with its API: their storage options, clients and settings of Hadoop.

Options are the fields of `S3StorageOptions`, in any case, with or without `aws_`, and their aliases
`endpoint_url` and `default_region`. A credential provider (see `options`) returns `access_key_id`,
`secret_access_key`, `session_token` and `expires_at`.

Settings without an option come from the environment and the AWS configuration files, by the rules
of the AWS SDK. An `http://` endpoint needs no `allow_http`. Options of delta-rs for locking
providers, copy-if-not-exists and unsafe renames are ignored: commits are always conditional puts.

Without credentials among the options, botocore finds them as the AWS SDK does: environment,
profile, single sign-on, assumed role, web identity, container, instance. It also renews them. Where
botocore is not installed, the client itself knows environment, web identity, container and
instance.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from dagster_delta.errors import InvalidArgument, StorageFailure
from dagster_delta.storage.cloud.client import Bucket, CloudClient, environment, open_bucket
from dagster_delta.storage.cloud.options import (
    CloudOptions,
    CredentialProvider,
    parse_options,
    provided_credentials,
)

# The client asks again five minutes before the end: botocore is asked every minute.
_ASK_AGAIN = timedelta(minutes=6)

_OPTIONS = (
    *("access_key_id", "secret_access_key", "session_token", "profile", "region", "endpoint"),
    *("skip_signature", "virtual_hosted_style_request", "ca_bundle", "conditional_put"),
    "credential_provider",
)
_NAMES = {
    **{name: name for name in _OPTIONS},
    "token": "session_token",
    "default_region": "region",
    "endpoint_url": "endpoint",
}
_PROVIDED = {
    "access_key_id": "access_key_id",
    "secret_access_key": "secret_access_key",
    "session_token": "token",
}


def parse_s3(options: Mapping[str, object]) -> CloudOptions:
    """The storage options of a user."""
    return parse_options(options, _NAMES, ("aws_",))


def connect_s3(options: CloudOptions, bucket: Bucket) -> CloudClient:
    """A client of a bucket."""
    # botocore is imported only where something is left to find: that takes longer than a request.
    is_complete = "region" in options and bool(
        options.get("skip_signature") or options.keys() & {"access_key_id", "credential_provider"}
    )
    profile = options.get("profile")
    session, region, endpoint = None, None, None
    if profile is not None or not is_complete:
        session, region, endpoint = _load_profile(profile)
    region = options.get("region") or environment("AWS_REGION") or region
    region = region or environment("AWS_DEFAULT_REGION") or "us-east-1"
    variables = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    endpoint = options.get("endpoint") or environment(*variables) or endpoint
    if endpoint is None and region.startswith("cn-"):
        endpoint = f"https://s3.{region}.amazonaws.com.cn"
    # The client reads variables of its own, and refuses all commits if one of them says so.
    config = {**options.of_client(), "region": region, "conditional_put": "etag"}
    is_virtual = config.setdefault("virtual_hosted_style_request", False)
    if endpoint is None:
        # A name with a dot in it fits no certificate.
        config["virtual_hosted_style_request"] = "." not in bucket.name
    else:
        of_bucket = endpoint.replace("://", f"://{bucket.name}.", 1)
        config["endpoint"] = of_bucket if is_virtual else endpoint
    store = open_bucket(
        "S3Store",
        bucket.name,
        config,
        endpoint=endpoint,
        ca_bundle=options.get("ca_bundle") or environment("AWS_CA_BUNDLE"),
        provider=_choose_provider(options, session),
    )
    host = "s3.amazonaws.com" if endpoint is None else urlsplit(endpoint).hostname or ""
    is_aws = host.endswith((".amazonaws.com", ".amazonaws.com.cn"))
    return CloudClient(store, is_trusted=is_aws)


def _load_profile(profile: str | None) -> tuple[Any, str | None, str | None]:
    """The `botocore` session of a profile, with the region and the endpoint of its configuration;
    None for each if it is not installed.
    """
    try:
        import botocore.session
        from botocore.configprovider import ConfiguredEndpointProvider
        from botocore.exceptions import BotoCoreError
    except ImportError:
        if profile is not None:
            raise StorageFailure(
                "A profile of AWS is read by botocore: pip install 'dagster-delta-protocol[s3]'"
            ) from None
        return None, None, None
    session = botocore.session.Session(profile=profile)
    try:
        scoped, region = session.get_scoped_config(), session.get_config_variable("region")
        endpoint = ConfiguredEndpointProvider(session.full_config, scoped, "s3").provide()
    except BotoCoreError as error:
        raise InvalidArgument(
            f"The AWS configuration is not valid ({type(error).__name__}); check the profile"
        ) from None
    return session, region, endpoint


def _choose_provider(options: CloudOptions, session: Any) -> CredentialProvider | None:  # noqa: ANN401
    if options.get("skip_signature"):
        return None
    vendor: CredentialProvider | None = options.get("credential_provider")
    if vendor is None and "access_key_id" in options:
        # As a provider, so that no session token of the environment is added.
        vendor = partial(dict, options)
    if vendor is None and session is not None:
        vendor = partial(_load_credentials, session)
    return None if vendor is None else partial(provided_credentials, vendor, _PROVIDED)


def _load_credentials(session: Any) -> Mapping[str, object]:  # noqa: ANN401
    credentials = session.get_credentials()
    if credentials is None:
        raise InvalidArgument("neither the storage options nor the AWS configuration have any")
    frozen = credentials.get_frozen_credentials()
    return {
        "access_key_id": frozen.access_key,
        "secret_access_key": frozen.secret_key,
        "session_token": frozen.token,
        "expires_at": datetime.now(UTC) + _ASK_AGAIN,
    }


_S3A = {
    "access_key_id": "fs.s3a.access.key",
    "secret_access_key": "fs.s3a.secret.key",
    "session_token": "fs.s3a.session.token",
    "endpoint": "fs.s3a.endpoint",
    "region": "fs.s3a.endpoint.region",
}
S3A_PATIENCE = {
    "fs.s3a.attempts.maximum": "3",
    "fs.s3a.retry.limit": "2",
    "fs.s3a.retry.throttle.limit": "5",
    "fs.s3a.connection.establish.timeout": "15s",
    "fs.s3a.connection.timeout": "60s",
    "fs.s3a.analytics.accelerator.physicalio.blockreadretrycount": "4",
}


def s3a_settings(options: CloudOptions, _uri: str) -> Mapping[str, str] | None:
    """The settings of S3A for the options; None if it has none for one of them."""
    if options.keys() & {"profile", "ca_bundle", "credential_provider"}:
        return None
    found = {setting: options[name] for name, setting in _S3A.items() if name in options}
    if "endpoint" in options:
        is_virtual = options.get("virtual_hosted_style_request", False)
        found["fs.s3a.path.style.access"] = str(not is_virtual).lower()
    if options.get("skip_signature"):
        found["fs.s3a.aws.credentials.provider"] = (
            "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
        )
    return found
