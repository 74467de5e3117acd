"""How storage options of a cloud are read: the names of `obstore`, with or without the prefix of
the cloud, the aliases that delta-rs shares, and credentials that a callable supplies.

Every cloud accepts `credential_provider`: a callable, or its name as `module:function`, that
returns the credentials to use, under the names of the options, and `expires_at`: an aware datetime,
or None if they never expire. It is asked again when they are about to expire. Give the name where
the options leave this process, as to a Spark executor.
"""

from __future__ import annotations

import difflib
import importlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, TypeAlias

from dagster_delta.errors import InvalidArgument

CredentialProvider: TypeAlias = Callable[[], Mapping[str, object]]
"""Returns credentials in the option names of their cloud, and `expires_at`."""

_OWN = frozenset({"profile", "ca_bundle", "conditional_put", "credential_provider", "credential"})
"""Options that the client does not know."""

_NEARLY = 0.9
"""Similarity of a misspelled option to an option, from 0 to 1."""

_OTHER_NAMES = {
    "access_key": "access_key_id",
    "secret_key": "secret_access_key",
    # Of s3fs and gcsfs.
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "application_credentials",
    "anon": "skip_signature",
    "region_name": "region",
    "verify": "ca_bundle",
    "client_kwargs": "endpoint",
    "config_kwargs": "virtual_hosted_style_request",
}
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


def parse_options(
    options: Mapping[str, object],
    names: Iterable[str],
    aliases: Mapping[str, str],
    prefixes: tuple[str, ...],
) -> CloudOptions:
    """The options of a cloud; of several names for one, the last one counts. Options that are not
    among the names belong to other tools, and are ignored.

    Args:
        options: as the user gave them.
        names: of the options, in lower case and without a prefix.
        aliases: name by other name.
        prefixes: in lower case, the longest first.

    Raises:
        InvalidArgument: an option is misspelled or invalid. The error never shows its value.
    """
    found = CloudOptions()
    known = {**{name: name for name in names}, **aliases}
    for option, value in options.items():
        bare = option.lower()
        prefix = next((prefix for prefix in prefixes if bare.startswith(prefix)), "")
        name = known.get(bare.removeprefix(prefix))
        if name is None:
            _refuse_misspelled(option, bare.removeprefix(prefix), known)
        elif value is not None and value != "":
            found[name] = _PARSERS.get(name, _parse_text)(value, option)
    for name, needed in _NEEDS.items():
        if name in found and not found.keys() >= set(needed):
            raise InvalidArgument(
                f"The storage option {name!r} needs {' and '.join(needed)} too; give all of them, "
                "or none to use the credentials of the environment"
            )
    return found


def _refuse_misspelled(option: str, bare: str, names: Collection[str]) -> None:
    """Refuse an unknown option that is nearly a known one, or its name elsewhere: ignored, it would
    leave the credentials or the endpoint to the environment.
    """
    close = difflib.get_close_matches(bare, names, n=1, cutoff=_NEARLY)
    meant = close[0] if close else _OTHER_NAMES.get(bare)
    if meant in names:
        raise InvalidArgument(
            f"There is no storage option {option!r}; did you mean {meant!r}? Options without a "
            "meaning here are ignored, but this one may be misspelled"
        )


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


def _parse_json(value: object, option: str) -> str:
    return json.dumps(dict(value)) if isinstance(value, Mapping) else _parse_text(value, option)


def _parse_conditional_put(value: object, option: str) -> str:
    if str(value).lower() not in {"etag", "disabled"}:
        raise InvalidArgument(f"The storage option {option!r} is 'etag' or 'disabled'")
    return str(value).lower()


def _parse_provider(value: object, option: str) -> CredentialProvider:
    """The callable of an option, which may be named as `module:function`."""
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
    "service_account_key": _parse_json,
    "sas_key": _parse_signature,
    "conditional_put": _parse_conditional_put,
    "credential_provider": _parse_provider,
    "credential": lambda value, _: value,
}


def expiry_of(answer: Mapping[str, object]) -> datetime | None:
    """When the credentials of a provider expire."""
    expires_at = answer.get("expires_at")
    if expires_at is None:
        return None
    if not isinstance(expires_at, datetime) or expires_at.tzinfo is None:
        raise InvalidArgument(
            "'expires_at' of a credential provider is a datetime with a time zone, or None"
        )
    return expires_at
