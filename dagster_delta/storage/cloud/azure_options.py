"""The storage options of a table on Azure Blob Storage or Data Lake Storage Gen 2.

| Setting | Names, in any case, with or without `azure_storage_` or `azure_` | also |
|---|---|---|
| account | `account_name` | in the URI |
| access key | `account_key`, `access_key` | |
| shared access signature | `sas_token`, `sas_key` | |
| connection string | `connection_string` | |
| service principal | `client_id`, `client_secret`, `tenant_id` | `authority_id` |
| workload identity | `federated_token_file`, `client_id`, `tenant_id` | |
| managed identity | `msi_endpoint`, `msi_resource_id`, `object_id`, `client_id` | |
| OAuth token | `token`, `bearer_token` | |
| login of the Azure CLI | `use_azure_cli` | |
| credential of `azure-identity` | | `credential` |
| no signature | `skip_signature` | `anon` |
| endpoint, if not Azure's | `endpoint` | |
| authority, of other Azure clouds | `authority_host` | |
| OneLake of Microsoft Fabric | `use_fabric_endpoint` | in the URI |
| conditional put | `conditional_put`: `etag` or `disabled` | |
| vended credentials ¹ | `credential_provider` | |

¹ See `options`; it returns `account_key`, `sas_token` or `token`, and `expires_at`.

Settings without an option come from the environment (`AZURE_STORAGE_ACCOUNT_NAME`, …), and last
from the managed identity of the machine.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from dagster_delta.errors import InvalidArgument
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
)

_SAME_NAMES = (
    *("account_name", "account_key", "sas_token", "connection_string", "client_id"),
    *("client_secret", "tenant_id", "federated_token_file", "msi_endpoint", "msi_resource_id"),
    *("object_id", "token", "use_azure_cli", "endpoint", "authority_host", "use_fabric_endpoint"),
    *("conditional_put", "credential_provider", "credential"),
)
_NAMES = {
    **{name: name for name in _SAME_NAMES},
    "access_key": "account_key",
    "sas_key": "sas_token",
    "bearer_token": "token",
    "authority_id": "tenant_id",
    "identity_endpoint": "msi_endpoint",
    "skip_signature": "anonymous",
    "anon": "anonymous",
}
_OAUTH_SCOPE = "https://storage.azure.com/.default"

# Option of a connection string → setting.
_CONNECTION = {
    "accountname": "account_name",
    "accountkey": "account_key",
    "sharedaccesssignature": "sas_token",
    "blobendpoint": "endpoint",
}


@dataclass(frozen=True, slots=True)
class AzureSettings:
    """How to reach the storage and with which identity. None: the environment decides."""

    account_name: str | None = None
    account_key: str | None = field(default=None, repr=False)
    sas_token: str | None = field(default=None, repr=False)
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    tenant_id: str | None = None
    federated_token_file: str | None = None
    msi_endpoint: str | None = field(default=None, repr=False)
    msi_resource_id: str | None = None
    object_id: str | None = None
    token: str | None = field(default=None, repr=False)
    use_azure_cli: bool = False
    endpoint: str | None = field(default=None, repr=False)
    authority_host: str | None = None
    use_fabric_endpoint: bool = False
    anonymous: bool = False
    conditional_put: str | None = None
    credential_provider: CredentialProvider | None = field(default=None, repr=False)

    def connect(self, bucket: Bucket) -> CloudClient:
        """A new client of a container."""
        stores = import_client("azure")
        endpoint = self.endpoint or environment("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
        arguments = {**self._identity(), **_account_of(bucket.account)}
        if self.account_name is not None:
            arguments.setdefault("account_name", self.account_name)
        if endpoint is not None:
            arguments["endpoint"] = endpoint
        if self.use_fabric_endpoint:
            arguments["use_fabric_endpoint"] = True
        try:
            store = stores.AzureStore(
                bucket.name,
                client_options=client_options(endpoint),
                retry_config=retry_options(),
                **arguments,
            )
        except (ValueError, stores.BaseError) as error:
            raise InvalidArgument(
                f"The Azure options make no sense ({type(error).__name__}); name the storage "
                "account in the URI or as account_name, and check the key and the endpoint"
            ) from None
        return CloudClient(
            store,
            is_trusted=endpoint is None,
            has_suffix_ranges=False,
            # Not in accounts with a hierarchical namespace.
            lists_in_order=False,
        )

    def _identity(self) -> dict[str, Any]:
        """The identity, with its kind: otherwise one of the environment could take precedence."""
        if self.anonymous:
            return {"skip_signature": True}
        if self.credential_provider is not None:
            provider = functools.partial(_vended, self.credential_provider)
            return {"credential_provider": Provider(provider)}
        if self.account_key is not None:
            return {"account_key": self.account_key, "credential_type": "access_key"}
        if self.sas_token is not None:
            return {"sas_key": self.sas_token.lstrip("?"), "credential_type": "sas_token"}
        if self.token is not None:
            return {"token": self.token, "credential_type": "bearer_token"}
        principal = self._given("client_id", "tenant_id", "authority_host", "object_id")
        if self.client_secret is not None:
            secret = {"client_secret": self.client_secret, "credential_type": "client_secret"}
            return {**principal, **secret}
        if self.federated_token_file is not None:
            file = self.federated_token_file
            kind = "workload_identity"
            return {**principal, "federated_token_file": file, "credential_type": kind}
        if self.use_azure_cli:
            return {"credential_type": "azure_cli", "use_azure_cli": True}
        managed = self._given("msi_endpoint", "msi_resource_id")
        if managed:
            return {**principal, **managed, "credential_type": "managed_identity"}
        return principal

    def _given(self, *names: str) -> dict[str, str]:
        return {name: value for name in names if (value := getattr(self, name)) is not None}


def parse_azure_options(options: Mapping[str, object]) -> AzureSettings:
    """The settings for the options."""
    prefixes = ("azure_storage_", "azure_")
    found = parse_options(options.items(), _NAMES, _PARSERS, prefixes=prefixes)
    connection = found.pop("connection_string", None)
    if connection is not None:
        found = {**_parse_connection(connection), **found}
    credential = found.pop("credential", None)
    if credential is not None:
        found["credential_provider"] = _Identity(credential)
    if "client_secret" in found and not {"client_id", "tenant_id"} <= found.keys():
        raise InvalidArgument(
            "A service principal of Azure has client_id, client_secret and tenant_id; the storage "
            "options lack one of them"
        )
    return AzureSettings(**found)


def _token_credential(value: object, option: str) -> object:
    if not callable(getattr(value, "get_token", None)):
        raise InvalidArgument(
            f"The storage option {option!r} is a credential of azure-identity, which has a "
            "method get_token"
        )
    return value


_PARSERS = {
    "use_azure_cli": parse_bool,
    "use_fabric_endpoint": parse_bool,
    "credential": _token_credential,
}


def _parse_connection(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.strip().strip(";").split(";")]
    values = {name.strip().lower(): value.strip() for name, _, value in pairs}
    found = {_CONNECTION[name]: value for name, value in values.items() if name in _CONNECTION}
    if not found.keys() & {"account_key", "sas_token"}:
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


def _vended(provider: CredentialProvider) -> Mapping[str, object]:
    answer = provider()
    for name, asked in (("account_key", "access_key"), ("sas_token", "sas_token")):
        if name in answer:
            return {asked: answer[name], "expires_at": expiry_of(answer)}
    return {"token": answer["token"], "expires_at": expiry_of(answer)}


class _Identity:
    """Asks a credential of `azure-identity` for tokens. Equal for one credential."""

    def __init__(self, credential: Any) -> None:  # noqa: ANN401
        self._credential = credential

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self._credential is other._credential

    def __hash__(self) -> int:
        return id(self._credential)

    def __call__(self) -> Mapping[str, object]:
        token = self._credential.get_token(_OAUTH_SCOPE)
        return {"token": token.token, "expires_at": datetime.fromtimestamp(token.expires_on, UTC)}
