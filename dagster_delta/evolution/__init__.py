"""Planning of schema changes.

Tested by `tests/evolution`, and with tables by `tests/table/operations`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_delta.lazy_modules import submodules_of

if TYPE_CHECKING:
    from dagster_delta.evolution import actions as actions

if not TYPE_CHECKING:
    __getattr__ = submodules_of(__name__)
