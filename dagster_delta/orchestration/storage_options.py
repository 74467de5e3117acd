"""Storage of tables and its credentials, as typed configuration that hides secrets.

Secret fields are left out of every `repr`, log line and error. Give them as `dg.EnvVar("NAME")`:
Dagster's pages then show the name of the variable; they show a literal value in plain text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from dagster import Config
from pydantic import ConfigDict, Field

from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.known_fields import KnownFieldsOnly
from dagster_delta.storage import TableResolver

_MASK = "********"
"""The Launchpad's placeholder for a secret, which it sends back as the value of a run."""


def make_secret_field(description: str) -> Any:  # noqa: ANN401
    """An optional field that neither a `repr` nor the Launchpad shows."""
    return Field(
        default=None,
        repr=False,
        description=description,
        json_schema_extra={"dagster__is_secret": True},
    )


def refuse_mask(name: str, value: object) -> None:
    """Refuse the mask of the Launchpad as a secret."""
    if value == _MASK:
        raise InvalidArgument(
            f"{name} is {_MASK}, with which the Launchpad masks a secret: delete the line from the "
            "run config, so that the value of the code location applies"
        )


class StorageOptions(KnownFieldsOnly, Config):
    """Base class of the storage options."""

    # Pydantic quotes invalid input in its errors, for example a mistyped secret.
    model_config = ConfigDict(hide_input_in_errors=True)

    extra: dict[str, Any] = Field(
        default={}, repr=False, description="Further options, passed through unchanged."
    )

    def to_options(self) -> dict[str, object]:
        """The storage options that `DeltaTable` takes. They hold the secrets in plain text.

        Raises:
            InvalidArgument: a secret is the mask of the Launchpad.
        """
        for name, value in self:
            refuse_mask(name, value)
        options = {
            name: value
            for name, value in self
            if name not in {"provider", "extra"} and value is not None
        }
        if options.get("conditional_put") == "probe":
            del options["conditional_put"]
        return {**options, **self.extra}


class LocalStorageOptions(StorageOptions):
    """Tables on a local or mounted disk."""

    provider: Literal["local"] = "local"


class CloudStorageOptions(StorageOptions):
    """What the clouds have in common."""

    endpoint: str | None = Field(
        default=None, repr=False, description="Endpoint URL, if not the cloud's own."
    )
    skip_signature: bool | None = Field(
        default=None, description="Do not sign requests, for public buckets."
    )
    conditional_put: Literal["probe", "etag", "disabled"] = Field(
        default="probe",
        description="etag: the provider is known to honour If-None-Match; disabled: it does not, "
        "so tables are read-only; probe: find out before the first commit, unless the provider is "
        "the cloud itself.",
    )
    credential_provider: str | None = Field(
        default=None,
        description="Name, as module:function, of a callable that returns credentials and when "
        "they expire.",
    )


class S3StorageOptions(CloudStorageOptions):
    """Tables on S3 or S3-compatible storage.

    Unset fields come from the environment and the AWS configuration files.
    """

    provider: Literal["s3"] = "s3"

    access_key_id: str | None = make_secret_field("Access key.")
    secret_access_key: str | None = make_secret_field("Secret key.")
    session_token: str | None = make_secret_field("Session token of temporary credentials.")
    token: str | None = make_secret_field("Alias of session_token, as in dagster-deltalake.")
    profile: str | None = Field(default=None, description="Profile of the AWS configuration.")
    region: str | None = Field(default=None, description="Region of the bucket.")
    virtual_hosted_style_request: bool | None = Field(
        default=None, description="Put the bucket into the host name instead of the path."
    )
    ca_bundle: str | None = Field(
        default=None, description="Path of a CA bundle to trust besides the system's."
    )


class GcsStorageOptions(CloudStorageOptions):
    """Tables on Google Cloud Storage."""

    provider: Literal["gcs"] = "gcs"

    service_account: str | None = Field(
        default=None, description="Path of the service account file."
    )
    service_account_key: str | None = make_secret_field("The serialised service account key.")
    application_credentials: str | None = Field(
        default=None, description="Path of a credentials file of any kind."
    )
    bearer_token: str | None = make_secret_field("OAuth token.")
    project: str | None = Field(
        default=None, description="Without effect; Google bills the project of the bucket."
    )


class AzureStorageOptions(CloudStorageOptions):
    """Tables on Azure Blob Storage or Data Lake Storage Gen 2."""

    provider: Literal["azure"] = "azure"

    account_name: str | None = Field(default=None, description="Storage account.")
    account_key: str | None = make_secret_field("Master key of the account.")
    sas_key: str | None = make_secret_field("Shared access signature.")
    connection_string: str | None = make_secret_field("Connection string of the account.")
    client_id: str | None = Field(default=None, description="Client id of a service principal.")
    client_secret: str | None = make_secret_field("Client secret of a service principal.")
    tenant_id: str | None = Field(default=None, description="Tenant of a service principal.")
    token: str | None = make_secret_field("OAuth token.")
    federated_token_file: str | None = Field(
        default=None, description="File with the token of a workload identity."
    )
    use_azure_cli: bool | None = Field(default=None, description="Use the login of the Azure CLI.")
    msi_endpoint: str | None = Field(
        default=None, repr=False, description="Endpoint of the managed identity."
    )
    msi_resource_id: str | None = Field(
        default=None, description="Resource id of a managed identity."
    )
    use_fabric_endpoint: bool | None = Field(
        default=None, description="The account is OneLake of Microsoft Fabric."
    )


class FsspecStorageOptions(StorageOptions):
    """Tables on HDFS and any other storage that fsspec supports, with the options in `extra`."""

    provider: Literal["fsspec"] = "fsspec"


AnyStorageOptions: TypeAlias = Annotated[
    LocalStorageOptions
    | S3StorageOptions
    | GcsStorageOptions
    | AzureStorageOptions
    | FsspecStorageOptions,
    Field(discriminator="provider"),
]


GivenStorage: TypeAlias = StorageOptions | TableResolver | Mapping[str, object]
"""Storage options, or the catalog that finds the tables, whose locations are then
`catalog://main.shop.orders`."""


def plain_options(options: GivenStorage | None) -> dict[str, object]:
    """The storage options that `DeltaTable` takes, for definitions that are not resources.

    The store that is opened with them resolves environment variables; the options hold other
    secrets in plain text.
    """
    if isinstance(options, StorageOptions):
        return options.to_options()
    if isinstance(options, TableResolver):
        return {"catalog": options}
    return dict(options or {})
