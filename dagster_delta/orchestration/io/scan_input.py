"""The type of inputs that are loaded as scans, and given as rows in unit tests."""

from __future__ import annotations

from dagster import DagsterType

from dagster_delta.table.read.scan import Scan

# Its values are not checked, so that a unit test may give other ones.
SCAN_INPUT = DagsterType(lambda _, __: True, name="DeltaScan", typing_type=Scan)
