"""How storage options of a cloud are read: several names for one setting, and credentials that a
callable supplies.

Every cloud accepts `credential_provider`: a callable, or its name as `module:function`, that
returns the credentials to use and when they expire. It is asked again when they are about to
expire. Give the name where the options leave this process, as to a Spark executor.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, TypeAlias

from dagster_delta.errors import InvalidArgument

CredentialProvider: TypeAlias = Callable[[], Mapping[str, object]]
"""Returns credentials in the option names of their cloud, and `expires_at`: an aware datetime, or
None if they never expire."""

_NEARLY = 0.9
"""Similarity of a misspelled option to an option, from 0 to 1."""

_OTHER_NAMES = {"access_key": "access_key_id", "secret_key": "secret_access_key"}

_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def parse_options(
    options: Iterable[tuple[str, object]],
    names: Mapping[str, str],
    parsers: Mapping[str, Callable[[object, str], object]],
    *,
    prefixes: tuple[str, ...],
) -> dict[str, Any]:
    """The settings that the options give; of several names for one setting the last one counts.

    `names` gives the setting by option name, in lower case and without a prefix; `prefixes` are in
    lower case, the longest first. `parsers` are for settings that are no text, and get the value
    and the name of the option: the message of an error names the option, never its value.
    """
    parsers = {**_COMMON_PARSERS, **parsers}
    found: dict[str, Any] = {}
    for name, value in options:
        bare = name.lower()
        bare = next((bare.removeprefix(each) for each in prefixes if bare.startswith(each)), bare)
        setting = names.get(bare)
        if setting is None:
            _refuse_misspelled(name, bare, names)
        if setting is not None and value is not None and value != "":
            found[setting] = parsers.get(setting, parse_text)(value, name)
    return found


def _refuse_misspelled(name: str, bare: str, names: Mapping[str, str]) -> None:
    """Refuse an unknown option that is nearly a known one: ignored, it would leave the credentials
    or the endpoint to the environment. Options of other tools are no error.
    """
    close = difflib.get_close_matches(bare, names, n=1, cutoff=_NEARLY)
    meant = close[0] if close else _OTHER_NAMES.get(bare)
    if meant in names:
        raise InvalidArgument(
            f"There is no storage option {name!r}; did you mean {meant!r}? Options without a "
            "meaning here are ignored, but this one may be misspelled"
        )


def parse_bool(value: object, option: str) -> bool:
    """The truth value of an option. Raises InvalidArgument, without the value."""
    parsed = _BOOLEANS.get(str(value).lower())
    if parsed is None:
        raise InvalidArgument(f"The storage option {option!r} is true or false")
    return parsed


def parse_text(value: object, option: str) -> str:
    """The text of an option. Raises InvalidArgument, without the value."""
    if not isinstance(value, str):
        raise InvalidArgument(f"The storage option {option!r} is a string")
    return value


def _conditional_put(value: object, option: str) -> str:
    """`etag` or `disabled`. Raises InvalidArgument, without the value."""
    if str(value).lower() not in {"etag", "disabled"}:
        raise InvalidArgument(f"The storage option {option!r} is 'etag' or 'disabled'")
    return str(value).lower()


def _credential_provider(value: object, option: str) -> CredentialProvider:
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
    try:
        hash(found)
    except TypeError:
        # Settings are compared to find a client that exists already.
        return _ByIdentity(found)
    return found


class _ByIdentity:
    """A provider that is equal only to itself."""

    def __init__(self, provider: CredentialProvider) -> None:
        self._provider = provider

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and self._provider is other._provider

    def __hash__(self) -> int:
        return id(self._provider)

    def __call__(self) -> Mapping[str, object]:
        return self._provider()


_COMMON_PARSERS: Mapping[str, Callable[[object, str], object]] = {
    "anonymous": parse_bool,
    "conditional_put": _conditional_put,
    "credential_provider": _credential_provider,
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
