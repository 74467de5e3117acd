"""Storage options of a table as settings of Hadoop's file systems (S3A, ABFS, Google's connector).

They apply to one read. But Hadoop keeps one client per bucket: a process keeps the first
credentials that it uses for a bucket. Vended credentials, which expire, are no settings therefore.
"""

from __future__ import annotations

from collections.abc import Mapping

from dagster_delta.storage.cloud.azure_options import AzureSettings, parse_azure_options
from dagster_delta.storage.cloud.gcs_options import parse_gcs_options
from dagster_delta.storage.cloud.s3_options import parse_s3_options
from dagster_delta.storage.locations import cloud_of, scheme_of
from dagster_delta.storage.object_store import StoreLocation

__all__ = ["hadoop_settings"]

_OAUTH = "org.apache.hadoop.fs.azurebfs.oauth2"
_AUTHORITY = "https://login.microsoftonline.com"


def hadoop_settings(location: StoreLocation) -> Mapping[str, str] | None:
    """The settings for the storage options of a table; empty outside of the clouds.

    What Hadoop finds itself, as in the environment, needs no setting.

    Returns:
        None if Hadoop would reach the storage in another way, or as another identity.

    Raises:
        InvalidArgument: an option is invalid.
    """
    match cloud_of(scheme_of(location.uri)):
        case "s3":
            settings = _s3a(location.options)
        case "gcs":
            settings = _google(location.options)
        case "azure":
            settings = _azure(location)
        case _:
            return {}
    if settings is None:
        return None
    return {name: value for name, value in settings.items() if value is not None}


def _s3a(options: Mapping[str, object]) -> dict[str, str | None] | None:
    settings = parse_s3_options(options)
    if settings.profile or settings.ca_bundle or settings.credential_provider:
        return None
    found = {
        "fs.s3a.access.key": settings.access_key,
        "fs.s3a.secret.key": settings.secret_key,
        "fs.s3a.session.token": settings.session_token,
        "fs.s3a.endpoint": settings.endpoint,
        "fs.s3a.endpoint.region": settings.region,
    }
    if settings.endpoint is not None:
        found["fs.s3a.path.style.access"] = str(not settings.virtual_hosted).lower()
    if settings.anonymous:
        found["fs.s3a.aws.credentials.provider"] = (
            "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
        )
    return found


def _google(options: Mapping[str, object]) -> dict[str, str | None] | None:
    settings = parse_gcs_options(options)
    if settings.key or settings.bearer_token or settings.credential_provider:
        return None
    found = {"fs.gs.storage.root.url": settings.endpoint}
    if settings.anonymous:
        found["fs.gs.auth.type"] = "UNAUTHENTICATED"
    elif settings.key_file is not None:
        found["fs.gs.auth.type"] = "SERVICE_ACCOUNT_JSON_KEYFILE"
        found["fs.gs.auth.service.account.json.keyfile"] = settings.key_file
    return found


def _azure(location: StoreLocation) -> dict[str, str | None] | None:
    settings = parse_azure_options(location.options)
    host = location.uri.partition("://")[2].partition("/")[0].partition("@")[2]
    found = _of_account(settings)
    # Hadoop has no URI without the account, and requests nothing from another endpoint.
    if not host or found is None or settings.endpoint or settings.use_fabric_endpoint:
        return None
    return {f"fs.azure.{name}.{host}": value for name, value in found.items()}


def _of_account(settings: AzureSettings) -> dict[str, str | None] | None:
    """The settings of an account, in the order in which the client prefers them; None if Hadoop
    has none for this identity.
    """
    if settings.anonymous or settings.credential_provider is not None:
        return None
    if settings.account_key is not None:
        return {"account.auth.type": "SharedKey", "account.key": settings.account_key}
    if settings.sas_token is not None:
        return {"account.auth.type": "SAS", "sas.fixed.token": settings.sas_token.lstrip("?")}
    if settings.token is not None:
        return None
    authority = f"{(settings.authority_host or _AUTHORITY).rstrip('/')}/{settings.tenant_id}"
    oauth = {"account.auth.type": "OAuth", "account.oauth2.client.id": settings.client_id}
    if settings.client_secret is not None:
        return {
            **oauth,
            "account.oauth.provider.type": f"{_OAUTH}.ClientCredsTokenProvider",
            "account.oauth2.client.secret": settings.client_secret,
            "account.oauth2.client.endpoint": f"{authority}/oauth2/token",
        }
    if settings.federated_token_file is not None:
        return {
            **oauth,
            "account.oauth.provider.type": f"{_OAUTH}.WorkloadIdentityTokenProvider",
            "account.oauth2.msi.tenant": settings.tenant_id,
            "account.oauth2.token.file": settings.federated_token_file,
        }
    is_managed = settings.client_id or settings.msi_endpoint or settings.msi_resource_id
    return None if is_managed or settings.use_azure_cli else {}
