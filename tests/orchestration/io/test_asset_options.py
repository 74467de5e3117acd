"""Asset metadata overrides the IO manager, and what it cannot mean is an error."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import dagster as dg
import pytest

from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.io.asset_options import (
    ASSET_KEYS,
    INPUT_KEYS,
    AssetOptions,
    InputOptions,
    note_foreign_key,
    read_asset_options,
    read_input_options,
)


def read(metadata, **defaults) -> AssetOptions:
    return read_asset_options(metadata, AssetOptions(**defaults), asset="flights")


class EarlierWriteMode(str, Enum):  # noqa: UP042 - as earlier integrations define it
    append = "append"


def test_without_metadata_the_defaults_hold():
    assert read({}, mode="append", schema="s") == AssetOptions(mode="append", schema="s")


def test_metadata_wins_over_the_defaults():
    options = read({"mode": "append", "schema_mode": "merge", "schema": "s"}, mode="overwrite")
    assert (options.mode, options.schema_mode, options.schema) == ("append", "merge", "s")


def test_the_namespaced_spelling_means_the_same():
    assert read({"delta/partition_expr": "day"}) == read({"partition_expr": "day"})


def test_metadata_values_are_unwrapped():
    assert read({"mode": dg.MetadataValue.text("append")}).mode == "append"


def test_enumerations_of_earlier_integrations_are_accepted():
    assert read({"mode": EarlierWriteMode.append}).mode == "append"


def test_properties_and_custom_metadata_are_merged_key_by_key():
    options = read(
        {"table_properties": {"b": "2", "delta.appendOnly": True}},
        table_properties={"a": "1", "b": "1"},
    )
    assert options.table_properties == {"a": "1", "b": "2", "delta.appendOnly": "true"}


def test_one_column_may_stand_without_a_list():
    assert read({"partition_by": "day"}).partition_by == ("day",)


def test_no_partition_columns_at_all_can_be_asked_for():
    assert read({"partition_by": []}).partition_by == ()


def test_an_unknown_key_of_our_namespace_is_an_error_with_a_suggestion():
    with pytest.raises(InvalidArgument, match=r"flights.*did you mean 'partition_expr'"):
        read({"delta/partition_exp": "day"})


def test_foreign_metadata_is_left_alone_and_noted_once(caplog):
    note_foreign_key.cache_clear()
    foreign = {"owner": "x", "dagster/column_schema": object(), "team/mod": 1}
    assert read(foreign) == AssetOptions()
    assert read(foreign) == AssetOptions()
    (record,) = caplog.records
    assert "'owner' of asset flights is not an option" in record.getMessage()


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("mod", "mode"),
        ("Mode", "mode"),
        ("partition_exp", "partition_expr"),
        ("tablename", "table_name"),
        ("partiton_by", "partition_by"),
        ("sorted_by", "sort_by"),
    ],
)
def test_a_key_that_is_nearly_an_option_is_an_error(key, meant):
    with pytest.raises(InvalidArgument, match=rf"asset flights.*{key!r}.*did you mean {meant!r}"):
        read({key: "append"})


@pytest.mark.parametrize(
    "key", ["model", "stable", "cable", "tables", "schemas", "schema_name", "partition", "node"]
)
def test_other_words_are_the_users_own(key):
    assert read({key: "xgboost"}) == AssetOptions()


@pytest.mark.parametrize("option", ["sample_rows", "show_history"])
def test_true_is_no_number(option):
    with pytest.raises(InvalidArgument, match=option):
        read({option: True})
    with pytest.raises(InvalidArgument, match="version"):
        read_input_options({"version": True}, "the input flights")


def test_a_filter_belongs_to_an_input():
    with pytest.raises(
        InvalidArgument, match="'where', which is not an option: it is an option of an"
    ):
        read({"where": "id > 1"})


def test_a_key_near_an_option_that_is_given_too_is_the_users_own():
    assert read({"modes": "fast", "mode": "append"}).mode == "append"


@pytest.mark.parametrize(
    "key",
    ["write_mode", "upsert_options", "table_config", "root_name", "overwrite_schema"],
)
def test_a_key_of_another_integration_is_an_error_that_names_the_page(key):
    with pytest.raises(InvalidArgument, match=rf"asset flights.*{key!r}.*docs/migration\.md"):
        read({key: "append"})


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("column", "columns"),
        ("colums", "columns"),
        ("versoin", "version"),
        ("filter", "docs/migration.md"),
        ("predicate", "docs/migration.md"),
        ("table_version", "docs/migration.md"),
    ],
)
def test_a_key_of_an_input_that_is_nearly_an_option_is_an_error(key, meant):
    with pytest.raises(InvalidArgument, match=meant):
        read_input_options({key: "a"}, "the input flights")


def test_the_pages_list_every_key():
    root = Path(__file__).parents[3]
    listed = (root / "docs" / "assets.md").read_text()
    missing = [key for key in (*ASSET_KEYS, *INPUT_KEYS) if f"`{key}`" not in listed]
    assert not missing


@pytest.mark.parametrize(
    "metadata",
    [
        {"mode": "upsert"},
        {"schema_mode": True},
        {"partition_expr": 7},
        {"partition_expr": ""},
        {"partition_by": 7},
        {"table_properties": "delta.appendOnly"},
    ],
)
def test_a_value_the_option_does_not_take_is_an_error_that_names_key_and_asset(metadata):
    (key,) = metadata
    with pytest.raises(InvalidArgument, match=f"{key}.*flights"):
        read(metadata)


@pytest.mark.parametrize(
    ("options", "key", "uri"),
    [
        ({}, ["flights"], "s3://lake/public/flights"),
        ({}, ["raw", "flights"], "s3://lake/raw/flights"),
        ({}, ["eu", "raw", "flights"], "s3://lake/raw/flights"),
        ({"schema": "s"}, ["raw", "flights"], "s3://lake/s/flights"),
        ({"schema": ""}, ["raw", "flights"], "s3://lake/flights"),
        ({"table_name": "t"}, ["raw", "flights"], "s3://lake/raw/t"),
    ],
)
def test_tables_lie_where_earlier_io_managers_keep_them(options, key, uri):
    found = AssetOptions(**options).table_uri("s3://lake/", dg.AssetKey(key), "result")
    assert found == uri


def test_an_op_output_is_named_by_itself():
    assert AssetOptions().table_uri("/lake", None, "result") == "/lake/public/result"


def test_input_metadata_names_columns_filter_and_version():
    options = read_input_options(
        {"columns": ["a", "b"], "where": "a > 1", "version": "3"}, "the input flights"
    )
    assert options == InputOptions(columns=("a", "b"), where="a > 1", version=3)


def test_a_negative_version_is_an_error():
    with pytest.raises(InvalidArgument, match="greater than or equal to 0"):
        read_input_options({"version": -1}, "the input flights")


@pytest.mark.parametrize("key", ["schema", "table_name", "partition_expr"])
def test_an_input_does_not_say_where_the_table_of_another_asset_is(key):
    with pytest.raises(InvalidArgument, match=f"key '{key}', which is not an option"):
        read_input_options({key: "x"}, "the input flights")
