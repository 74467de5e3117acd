"""Switches that are off in a table or deployment; without them a change is planned but refused."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ENABLE_FEATURES", "MissingSwitch"]

ENABLE_FEATURES = "pass enable_features=True"
"""The Python option that turns on the table features for a change."""


@dataclass(frozen=True, slots=True)
class MissingSwitch:
    """A switch that is off and that a change needs."""

    name: str
    """Table feature, table property or option: `columnMapping`."""
    remedy: str
    """How to turn it on, as an imperative, with Python options."""
