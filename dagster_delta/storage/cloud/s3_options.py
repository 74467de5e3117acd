"""The storage options of an S3 table, in the names of all integrations.

| Setting | Names, in any case, with or without `aws_` | fsspec / s3fs names |
|---|---|---|
| access key | `access_key_id` | `key` |
| secret key | `secret_access_key` | `secret` |
| session token | `session_token` | `token` |
| AWS profile | `profile` | `profile` |
| region | `region`, `default_region`, `region_name` | `region_name` ¹ |
| endpoint, if not AWS | `endpoint_url`, `endpoint` | `endpoint_url` ¹ |
| no signature | `skip_signature` | `anon` |
| bucket in the host name | `virtual_hosted_style_request` | `config_kwargs.s3.addressing_style` |
| CA bundle ² | `ca_bundle` | `verify` ¹ |
| conditional put | `conditional_put`: `etag` or `disabled` | |
| vended credentials ³ | `credential_provider` | |

¹ also inside `client_kwargs`. ² A path of certificates to trust besides the system's; certificates
are always checked. ³ See `options`; it returns `access_key_id`, `secret_access_key`,
`session_token` and `expires_at`.

Settings without an option come from the environment and the AWS configuration files, by the rules
of the AWS SDK. An `http://` endpoint needs no `allow_http`. Options of other integrations that have
no meaning here (locking providers, copy-if-not-exists, unsafe renames) are ignored: commits are
always conditional puts.

Without credentials among the options, botocore finds them as the AWS SDK does: environment,
profile, single sign-on, assumed role, web identity, container, instance. It also renews them. Where
botocore is not installed, the client itself knows environment, web identity, container and
instance.

An answer that is no listing, such as a proxy's web page with the status 200, is an empty listing
for the client, or one that ends with its page. So a listing that ends at the end of a page is
confirmed through botocore, which shows what S3 answered.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from dagster_delta.errors import InvalidArgument, StorageFailure
from dagster_delta.storage.cloud.client import (
    Bucket,
    CloudClient,
    Provider,
    client_options,
    environment,
    import_client,
    retry_options,
)
from dagster_delta.storage.cloud.options import (
    CredentialProvider,
    expiry_of,
    parse_bool,
    parse_options,
    parse_text,
)
from dagster_delta.storage.cloud.requests import BrokenAnswer

# The client asks again five minutes before the end: botocore is asked every minute.
_ASK_AGAIN = timedelta(minutes=6)
_NAMES = {
    "access_key_id": "access_key",
    "key": "access_key",
    "secret_access_key": "secret_key",
    "secret": "secret_key",
    "session_token": "session_token",
    "token": "session_token",
    "profile": "profile",
    "region": "region",
    "default_region": "region",
    "region_name": "region",
    "endpoint_url": "endpoint",
    "endpoint": "endpoint",
    "skip_signature": "anonymous",
    "anon": "anonymous",
    "virtual_hosted_style_request": "virtual_hosted",
    "ca_bundle": "ca_bundle",
    "verify": "ca_bundle",
    "conditional_put": "conditional_put",
    "credential_provider": "credential_provider",
}


@dataclass(frozen=True, slots=True)
class S3Settings:
    """How to reach the storage and with which identity. None: the environment decides."""

    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    profile: str | None = None
    region: str | None = None
    endpoint: str | None = field(default=None, repr=False)
    """URL of a provider other than AWS. It may hold credentials, so `repr` omits it."""
    anonymous: bool = False
    virtual_hosted: bool = False
    ca_bundle: str | None = None
    """Path of certificates to trust besides the system's."""
    conditional_put: str | None = None
    """`etag`: the provider is known to honour `If-None-Match`; `disabled`: it does not."""
    credential_provider: CredentialProvider | None = field(default=None, repr=False)


def parse_s3_options(options: Mapping[str, object]) -> S3Settings:
    """The settings for the options."""
    found = parse_options(_flattened(options), _NAMES, _PARSERS, prefixes=("aws_",))
    settings = S3Settings(**found)
    if (settings.access_key is None) != (settings.secret_key is None):
        raise InvalidArgument(
            "The storage options hold only one of access key and secret key; give both, or "
            "neither to use the credentials of the environment"
        )
    return settings


def _flattened(options: Mapping[str, object]) -> list[tuple[str, object]]:
    # The nested names come first, so that the plain ones override them.
    config = _mapping(options, "config_kwargs")
    style = _mapping(config, "s3").get("addressing_style")
    pairs = [("virtual_hosted_style_request", style == "virtual")] if style is not None else []
    pairs += _mapping(options, "client_kwargs").items()
    return pairs + list(options.items())


def _mapping(options: Mapping[str, object], name: str) -> Mapping[str, Any]:
    value = options.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"The storage option {name!r} is a mapping")
    return value


def _ca_bundle_path(value: object, option: str) -> str | None:
    if str(value).lower() in {"true", "false", "1", "0", "yes", "no"}:
        if not parse_bool(value, option):
            raise InvalidArgument(
                f"Certificates are always checked; give the path of a CA bundle as {option!r}"
            )
        return None
    return parse_text(value, option)


_PARSERS = {"virtual_hosted": parse_bool, "ca_bundle": _ca_bundle_path}


def connect_s3(settings: S3Settings, bucket: Bucket) -> CloudClient:
    """A client of a bucket."""
    s3_store = import_client("s3").S3Store
    # botocore is imported only where something is left to find: that takes longer than a request.
    is_complete = settings.region is not None and (
        settings.anonymous or (settings.access_key or settings.credential_provider) is not None
    )
    session = None if is_complete and settings.profile is None else _session(settings)
    region = _region(settings, session)
    endpoint = _endpoint(settings, region, session)
    # The client reads variables of its own, and refuses all commits if one of them says so.
    arguments: dict[str, Any] = {"region": region, "conditional_put": "etag"}
    if endpoint is None:
        # A name with a dot in it fits no certificate.
        arguments["virtual_hosted_style_request"] = "." not in bucket.name
    else:
        arguments["endpoint"] = _bucket_endpoint(endpoint, settings, bucket)
        arguments["virtual_hosted_style_request"] = settings.virtual_hosted
    if settings.anonymous:
        arguments["skip_signature"] = True
    elif (provider := _provider(settings, session)) is not None:
        arguments["credential_provider"] = Provider(provider)
    try:
        store = s3_store(
            bucket.name,
            client_options=client_options(endpoint, _ca_bundle(settings)),
            retry_config=retry_options(),
            **arguments,
        )
    except (ValueError, import_client("s3").BaseError) as error:
        raise InvalidArgument(
            f"The S3 options make no sense ({type(error).__name__}); check the region and the "
            "endpoint"
        ) from None
    check = _ListingCheck(settings, bucket.name, region, endpoint)
    is_aws = _is_aws(endpoint)
    return CloudClient(store, is_trusted=is_aws, lists_in_order=is_aws, confirm_listing=check)


def _session(settings: S3Settings) -> Any:  # noqa: ANN401
    """The `botocore` session of the settings, or None if it is not installed."""
    try:
        import botocore.session
        from botocore.exceptions import BotoCoreError
    except ImportError:
        if settings.profile is not None:
            raise StorageFailure(
                "A profile of AWS is read by botocore: pip install 'dagster-delta-protocol[s3]'"
            ) from None
        return None
    session = botocore.session.Session(profile=settings.profile)
    try:
        session.get_scoped_config()
    except BotoCoreError as error:
        raise InvalidArgument(
            f"The AWS configuration makes no sense ({type(error).__name__}); check the profile"
        ) from None
    if settings.access_key is not None:
        session.set_credentials(settings.access_key, settings.secret_key, settings.session_token)
    return session


def _region(settings: S3Settings, session: Any) -> str:  # noqa: ANN401
    configured = settings.region or os.environ.get("AWS_REGION")
    if configured is None and session is not None:
        configured = session.get_config_variable("region")
    return configured or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"


def _endpoint(settings: S3Settings, region: str, session: Any) -> str | None:  # noqa: ANN401
    """The URL of another provider than AWS, or of its partition in China; None for AWS."""
    found = (
        settings.endpoint
        or environment("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
        or _configured_endpoint(session)
    )
    if found is None and region.startswith("cn-"):
        return f"https://s3.{region}.amazonaws.com.cn"
    return found


def _configured_endpoint(session: Any) -> str | None:  # noqa: ANN401
    """The endpoint that the AWS configuration files name."""
    if session is None:
        return None
    profile = session.get_scoped_config()
    services = session.full_config.get("services", {}).get(profile.get("services"), {})
    found: str | None = services.get("s3", {}).get("endpoint_url") or profile.get("endpoint_url")
    return found


def _bucket_endpoint(endpoint: str, settings: S3Settings, bucket: Bucket) -> str:
    if not settings.virtual_hosted:
        return endpoint
    scheme, separator, rest = endpoint.partition("://")
    return f"{scheme}{separator}{bucket.name}.{rest}"


def _is_aws(endpoint: str | None) -> bool:
    from urllib.parse import urlsplit

    host = "s3.amazonaws.com" if endpoint is None else urlsplit(endpoint).hostname or ""
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn"))


def _ca_bundle(settings: S3Settings) -> str | None:
    return settings.ca_bundle or os.environ.get("AWS_CA_BUNDLE")


def _provider(settings: S3Settings, session: Any) -> CredentialProvider | None:  # noqa: ANN401
    if settings.credential_provider is not None:
        return functools.partial(_vended, settings.credential_provider)
    if settings.access_key is not None:
        return lambda: {
            "access_key_id": settings.access_key,
            "secret_access_key": settings.secret_key,
            "token": settings.session_token,
            "expires_at": None,
        }
    return None if session is None else functools.partial(_found, session)


def _vended(provider: CredentialProvider) -> Mapping[str, object]:
    answer = provider()
    return {
        "access_key_id": answer["access_key_id"],
        "secret_access_key": answer["secret_access_key"],
        "token": answer.get("session_token"),
        "expires_at": expiry_of(answer),
    }


def _found(session: Any) -> Mapping[str, object]:  # noqa: ANN401
    credentials = session.get_credentials()
    if credentials is None:
        raise InvalidArgument("neither the storage options nor the AWS configuration have any")
    frozen = credentials.get_frozen_credentials()
    return {
        "access_key_id": frozen.access_key,
        "secret_access_key": frozen.secret_key,
        "token": frozen.token,
        "expires_at": datetime.now(UTC) + _ASK_AGAIN,
    }


class _ListingCheck:
    """Whether a listing is at its end, as S3 itself answers. Thread-safe."""

    def __init__(
        self, settings: S3Settings, bucket: str, region: str, endpoint: str | None
    ) -> None:
        self._settings, self._bucket = settings, bucket
        self._region, self._endpoint = region, endpoint
        self._lock = threading.Lock()
        self._client: Any = None

    def __call__(self, prefix: str, after: str) -> bool:
        """Whether no key with the prefix comes after another; True without botocore."""
        with self._lock:
            client = self._connected()
        return client is None or not _following(client, self._bucket, prefix, after)

    def _connected(self) -> Any:  # noqa: ANN401
        settings = self._settings
        if self._client is not None and settings.credential_provider is None:
            return self._client
        session = _session(settings)
        if session is None:
            return None
        if settings.credential_provider is not None:
            vended = _vended(settings.credential_provider)
            session.set_credentials(
                vended["access_key_id"], vended["secret_access_key"], vended["token"]
            )
        from botocore import UNSIGNED
        from botocore.config import Config

        style = "virtual" if settings.virtual_hosted or self._endpoint is None else "path"
        self._client = session.create_client(
            "s3",
            region_name=self._region,
            endpoint_url=self._endpoint,
            config=Config(
                signature_version=UNSIGNED if settings.anonymous else None,
                retries={"mode": "standard", "max_attempts": 1},
                s3={"addressing_style": style},
            ),
            verify=_ca_bundle(settings),
        )
        return self._client


def _following(client: Any, bucket: str, prefix: str, after: str) -> bool:  # noqa: ANN401
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError
    from urllib3.exceptions import HTTPError

    try:
        answer = client.list_objects_v2(Bucket=bucket, Prefix=prefix, StartAfter=after, MaxKeys=1)
    except ClientError as error:
        raise BrokenAnswer(str(error.response.get("Error", {}).get("Code"))) from None
    except (BotoCoreError, ResponseParserError, HTTPError) as error:
        # Only the name of the error: the text may hold credentials.
        raise BrokenAnswer(type(error).__name__) from None
    if not any(field in answer for field in ("Name", "KeyCount", "IsTruncated")):
        raise BrokenAnswer(BrokenAnswer.FOREIGN)
    return bool(answer.get("Contents"))
