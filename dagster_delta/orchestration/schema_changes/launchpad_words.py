"""Rewrites Python option names in messages and plans as Launchpad config."""

from __future__ import annotations

import re

from dagster_delta.orchestration.schema_changes.config import DeltaSchemaChangeConfig

__all__ = ["in_launchpad_words"]

_OPTION = re.compile(
    rf"(?:\bpass )?\b({'|'.join(DeltaSchemaChangeConfig.model_fields)})=(True|False|\"[^\"]*\")"
)
_CALL = re.compile(r"(?<![\w.`])change_column(?![\w(`])")


def in_launchpad_words(text: str) -> str:
    """The text with `pass enable_features=True` as `set enable_features: true`, likewise for every
    option of the config, and `change_column` as the kind of that name.
    """
    return _CALL.sub("kind CHANGE_COLUMN", _OPTION.sub(_as_config, text))


def _as_config(option: re.Match[str]) -> str:
    verb = "set " if option[0].startswith("pass ") else ""
    value = option[2] if option[2].startswith('"') else option[2].lower()
    return f"{verb}{option[1]}: {value}"
