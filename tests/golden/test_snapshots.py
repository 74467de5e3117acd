"""What the log of every golden table says, or the named refusal."""

from __future__ import annotations

import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import (
    CatalogRequired,
    DeltaError,
    LogGap,
    MissingMetadata,
    MissingProtocol,
    TableNotFound,
    UnsupportedFeature,
    UnsupportedReaderVersion,
)
from tests.golden.answers import NAMES, READABLE, answer, table_path

REFUSALS: dict[str, type[DeltaError]] = {
    "no_metadata": MissingMetadata,
    "no_protocol": MissingProtocol,
    "not_a_delta_table": TableNotFound,
    "log_gap": LogGap,
    "unsupported_reader_version": UnsupportedReaderVersion,
    "unsupported_feature": UnsupportedFeature,
    "catalog_required": CatalogRequired,
}

REFUSED = sorted(set(NAMES) - set(READABLE))

pytestmark = pytest.mark.usefixtures("golden_tables")


@pytest.mark.parametrize("name", READABLE)
def test_the_log_gives_version_and_files(name: str) -> None:
    expected = answer(name)
    snapshot = DeltaTable(table_path(name)).snapshot()
    if expected["version"] is not None:
        assert snapshot.version == expected["version"]
    if expected["num_active_files"] is not None:
        assert snapshot.num_files == expected["num_active_files"]
        assert snapshot.files().num_rows == expected["num_active_files"]


@pytest.mark.parametrize("name", REFUSED)
def test_a_table_that_cannot_be_read_is_refused_by_name(name: str) -> None:
    kind = answer(name)["expected_error"]["kind"]
    with pytest.raises(REFUSALS[kind]):
        DeltaTable(table_path(name)).snapshot().scan().to_arrow()
