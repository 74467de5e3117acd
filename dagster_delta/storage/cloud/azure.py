"""Tables on Azure Blob Storage or Data Lake Storage Gen 2: their storage options, clients and
settings of Hadoop.

Options are the fields of `AzureStorageOptions`, in any case, with or without `azure_storage_` or
`azure_`, and their aliases `access_key`, `sas_token`, `bearer_token`, `authority_id` and
`identity_endpoint`. Further ones are `authority_host`, of other Azure clouds, and `object_id` of a
managed identity. A URI may name the account too. A credential provider (see `options`) returns
`account_key`, `sas_token` or `token`, and `expires_at`.

Settings without an option come from the environment (`AZURE_STORAGE_ACCOUNT_NAME`, …), and last
from the managed identity of the machine.
"""

from __future__ import annotations

from collections.abc import Mapping

from dagster_delta.errors import InvalidArgument
from dagster_delta.storage.cloud.client import Bucket, CloudClient, environment, open_bucket
from dagster_delta.storage.cloud.options import CloudOptions, parse_options

# Option that selects an identity, in the order of precedence → the client's name of its kind.
_KINDS = {
    "account_key": "access_key",
    "sas_key": "sas_token",
    "token": "bearer_token",
    "client_secret": "client_secret",
    "federated_token_file": "workload_identity",
    "use_azure_cli": "azure_cli",
    "msi_endpoint": "managed_identity",
    "msi_resource_id": "managed_identity",
}
_OTHERS = (
    *("account_name", "connection_string", "client_id", "tenant_id", "object_id"),
    *("endpoint", "authority_host"),
    *("use_fabric_endpoint", "skip_signature", "conditional_put", "credential_provider"),
)
_NAMES = {
    **{name: name for name in (*_KINDS, *_OTHERS)},
    "access_key": "account_key",
    "sas_token": "sas_key",
    "bearer_token": "token",
    "authority_id": "tenant_id",
    "identity_endpoint": "msi_endpoint",
}
_PREFIXES = ("azure_storage_", "azure_")
_PROVIDED = {"account_key": "access_key", "sas_token": "sas_token", "token": "token"}

# Option of a connection string → storage option.
_CONNECTION = {
    "accountname": "account_name",
    "accountkey": "account_key",
    "sharedaccesssignature": "sas_key",
    "blobendpoint": "endpoint",
}


def parse_azure(options: Mapping[str, object]) -> CloudOptions:
    """The options, and those of the connection string, which give way to them."""
    found = parse_options(options, _NAMES, _PREFIXES)
    text = found.pop("connection_string", None)
    return found if text is None else CloudOptions({**_of_connection(text), **found})


def connect_azure(options: CloudOptions, bucket: Bucket) -> CloudClient:
    """A client of a container."""
    config = {**options.of_client(), **_account_of(bucket.account)}
    endpoint = options.get("endpoint") or environment("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
    if endpoint is not None:
        config["endpoint"] = endpoint
    provider = options.provider(_PROVIDED)
    if provider is None and (kind := _kind_of(options)):
        # Otherwise an identity of the environment could take precedence.
        config["credential_type"] = kind
    store = open_bucket(
        "AzureStore",
        bucket.name,
        config,
        endpoint=endpoint,
        provider=provider,
    )
    return CloudClient(store, is_trusted=endpoint is None, has_suffix_ranges=False)


def _kind_of(options: CloudOptions) -> str | None:
    """The kind of identity that the options select; None if the environment does."""
    if options.get("skip_signature"):
        return None
    return next((kind for name, kind in _KINDS.items() if options.get(name)), None)


def _of_connection(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.strip().strip(";").split(";")]
    values = {name.strip().lower(): value.strip() for name, _, value in pairs}
    found = {_CONNECTION[name]: value for name, value in values.items() if name in _CONNECTION}
    if not found.keys() & {"account_key", "sas_key"}:
        raise InvalidArgument(
            "The connection string of Azure has neither AccountKey nor SharedAccessSignature"
        )
    suffix = values.get("endpointsuffix", "core.windows.net")
    if "endpoint" not in found and suffix != "core.windows.net" and "account_name" in found:
        found["endpoint"] = f"https://{found['account_name']}.blob.{suffix}"
    return found


def _account_of(host: str | None) -> dict[str, str | bool]:
    """The account, and the endpoint if it is of another Azure cloud, that a URI's host names."""
    if host is None:
        return {}
    account, _, domain = host.partition(".")
    found: dict[str, str | bool] = {"account_name": account}
    if domain.endswith("fabric.microsoft.com"):
        found["use_fabric_endpoint"] = True
    elif domain and domain not in {"dfs.core.windows.net", "blob.core.windows.net"}:
        found["endpoint"] = f"https://{account}.blob.{domain.partition('.')[2]}"
    return found


def service_of(host: str | None) -> str:
    """The domain of the Azure cloud that has an account, by the host of a URI or None."""
    return (host or "").lower().partition(".")[2].partition(".")[2] or "core.windows.net"


_OAUTH = "org.apache.hadoop.fs.azurebfs.oauth2"
_AUTHORITY = "https://login.microsoftonline.com"
ABFS_PATIENCE = {"fs.azure.io.retry.max.retries": "4"}


def abfs_settings(options: CloudOptions, uri: str) -> Mapping[str, str] | None:
    """The settings of ABFS for the options and the account in the URI; None if it has none for one
    of them.
    """
    host = uri.partition("://")[2].partition("/")[0].partition("@")[2]
    # Hadoop has no URI without the account, and requests nothing from another endpoint.
    elsewhere = options.keys() & {"endpoint", "credential_provider"}
    if not host or elsewhere or any(map(options.get, ("skip_signature", "use_fabric_endpoint"))):
        return None
    found = _abfs_identity(options)
    if found is None:
        return None
    return {f"fs.azure.{name}.{host}": value for name, value in found.items() if value}


def _abfs_identity(options: CloudOptions) -> dict[str, str | None] | None:
    authority = options.get("authority_host", _AUTHORITY).rstrip("/")
    tenant = options.get("tenant_id")
    oauth = {"account.auth.type": "OAuth", "account.oauth2.client.id": options.get("client_id")}
    match _kind_of(options):
        case "access_key":
            return {"account.auth.type": "SharedKey", "account.key": options["account_key"]}
        case "sas_token":
            return {"account.auth.type": "SAS", "sas.fixed.token": options["sas_key"]}
        case "client_secret":
            return {
                **oauth,
                "account.oauth.provider.type": f"{_OAUTH}.ClientCredsTokenProvider",
                "account.oauth2.client.secret": options["client_secret"],
                "account.oauth2.client.endpoint": f"{authority}/{tenant}/oauth2/token",
            }
        case "workload_identity":
            return {
                **oauth,
                "account.oauth.provider.type": f"{_OAUTH}.WorkloadIdentityTokenProvider",
                "account.oauth2.msi.tenant": tenant,
                "account.oauth2.token.file": options["federated_token_file"],
            }
        case None if "client_id" not in options:
            return {}
    return None
