"""How storage options of a cloud are read: the names of `obstore`, with or without the prefix of
the cloud, the aliases that delta-rs shares, and credentials that a callable supplies.

Every cloud accepts `credential_provider`: a callable, or its name as `module:function`, that
returns the credentials to use, under the names of the options, and `expires_at`: an aware datetime,
or None if they never expire. It is asked again when they are about to expire. Give the name where
the options leave this process, as to a Spark executor.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from dagster_delta.errors import InvalidArgument
from dagster_delta.nearest_name import nearest_name

CredentialProvider: TypeAlias = Callable[[], Mapping[str, object]]
"""Returns credentials in the option names of their cloud, and `expires_at`."""

_OWN = frozenset({"profile", "ca_bundle", "conditional_put", "credential_provider"})
"""Options that the client does not know."""

_WITHOUT_EFFECT = frozenset(
    {"allow_http", "copy_if_not_exists", "s3_allow_unsafe_rename", "s3_locking_provider", "project"}
)
"""Options of delta-rs for what needs no option here."""

_NEEDS = {
    "access_key_id": ("secret_access_key",),
    "secret_access_key": ("access_key_id",),
    "client_secret": ("client_id", "tenant_id"),
}
_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class CloudOptions(dict[str, Any]):
    """The storage options of a cloud by the names of its client. Hashable, to find the client that
    exists already; it shows the names alone.
    """

    def __hash__(self) -> int:  # type: ignore[override]
        # By names: a credential provider need not be hashable.
        return hash(frozenset(self))

    def __repr__(self) -> str:
        return f"CloudOptions({', '.join(self)})"

    def of_client(self) -> dict[str, Any]:
        """The options that the client itself knows."""
        return {name: value for name, value in self.items() if name not in _OWN}

    def provider(self, names: Mapping[str, str]) -> CredentialProvider | None:
        """What asks the user's credential provider, in the names of the client. Requests that are
        not signed need none.
        """
        vendor = None if self.get("skip_signature") else self.get("credential_provider")
        return None if vendor is None else partial(provided_credentials, vendor, names)


def parse_options(
    options: Mapping[str, object], names: Mapping[str, str], prefixes: tuple[str, ...]
) -> CloudOptions:
    """The options of a cloud; of several names for one, the last one counts.

    Args:
        options: as the user gave them.
        names: each name and alias of an option, in lower case and without a prefix, and the
            option.
        prefixes: in lower case, the longest first.

    Raises:
        InvalidArgument: an option is unknown or invalid. The error never shows its value.
    """
    found = CloudOptions()
    for option, value in options.items():
        bare = option.lower()
        prefix = next((prefix for prefix in prefixes if bare.startswith(prefix)), "")
        bare = bare.removeprefix(prefix)
        name = names.get(bare)
        if value is None or value == "" or bare in _WITHOUT_EFFECT or "dynamo" in bare:
            continue
        if name is None:
            near = nearest_name(bare, names)
            hint = f"did you mean {near!r}?" if near else f"the options are {', '.join(names)}"
            raise InvalidArgument(f"There is no storage option {option!r}; {hint}")
        found[name] = _PARSERS.get(name, _parse_text)(value, option)
    for name, needed in _NEEDS.items():
        if name in found and not found.keys() >= set(needed):
            raise InvalidArgument(
                f"The storage option {name!r} needs {' and '.join(needed)} too; give all of them, "
                "or none to use the credentials of the environment"
            )
    return found


def _parse_text(value: object, option: str) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(f"The storage option {option!r} is a string")
    return value


def _parse_bool(value: object, option: str) -> bool:
    parsed = _BOOLEANS.get(str(value).lower())
    if parsed is None:
        raise InvalidArgument(f"The storage option {option!r} is true or false")
    return parsed


def _parse_path(value: object, option: str) -> str:
    return os.path.expanduser(_parse_text(value, option))  # noqa: PTH111


def _parse_signature(value: object, option: str) -> str:
    return _parse_text(value, option).lstrip("?")


def _parse_conditional_put(value: object, option: str) -> str:
    if str(value).lower() not in {"etag", "disabled"}:
        raise InvalidArgument(f"The storage option {option!r} is 'etag' or 'disabled'")
    return str(value).lower()


def _parse_provider(value: object, option: str) -> CredentialProvider:
    found = value
    if isinstance(value, str):
        module, _, name = value.partition(":")
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError):
            found = None
    if not callable(found):
        raise InvalidArgument(
            f"The storage option {option!r} is a callable without arguments, or the name of one as "
            "'module:function' that can be imported here"
        )
    return found


_PARSERS: Mapping[str, Callable[[object, str], object]] = {
    **dict.fromkeys(("skip_signature", "virtual_hosted_style_request"), _parse_bool),
    **dict.fromkeys(("use_azure_cli", "use_fabric_endpoint"), _parse_bool),
    **dict.fromkeys(("service_account", "application_credentials"), _parse_path),
    "sas_key": _parse_signature,
    "conditional_put": _parse_conditional_put,
    "credential_provider": _parse_provider,
}


def provided_credentials(
    provider: CredentialProvider, names: Mapping[str, str]
) -> Mapping[str, object]:
    """What a provider returns now, in the names of the client.

    `names`: the client's name of each credential.
    """
    answer = provider()
    expires_at = answer.get("expires_at")
    if expires_at is not None and getattr(expires_at, "tzinfo", None) is None:
        raise InvalidArgument(
            "'expires_at' of a credential provider is a datetime with a time zone, or None"
        )
    found = {client: answer[name] for name, client in names.items() if name in answer}
    return {**found, "expires_at": expires_at}
