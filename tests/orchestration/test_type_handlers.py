"""An annotation, or the default, decides what an input is loaded as."""

from __future__ import annotations

from typing import Any, Optional

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.io.type_handlers import load_type_of


@pytest.mark.parametrize(
    ("annotation", "name"),
    [
        (pa.Table, "pyarrow"),
        (pa.RecordBatchReader, "pyarrow_reader"),
        (pd.DataFrame, "pandas"),
        (pl.DataFrame, "polars"),
        (pl.LazyFrame, "polars_lazy"),
        (Optional[pd.DataFrame], "pandas"),  # noqa: UP045 - both spellings are in use
        (pa.Table | None, "pyarrow"),
    ],
)
def test_the_annotation_decides(annotation, name):
    assert load_type_of(annotation, "pyspark", name="flights").name == name


def test_a_pyspark_frame_of_either_kind_is_one_type():
    from pyspark.sql import DataFrame
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    for annotation in (DataFrame, ClassicDataFrame):
        assert load_type_of(annotation, None, name="flights").name == "pyspark"


def test_an_input_without_annotation_is_the_default():
    assert load_type_of(Any, "polars_lazy", name="flights").name == "polars_lazy"


def test_without_annotation_and_default_the_error_lists_both():
    with pytest.raises(InvalidArgument, match=r"'flights'.*pandas\.DataFrame.*default_load_type"):
        load_type_of(Any, None, name="flights")


@pytest.mark.parametrize("annotation", [int, list[int], pd.Series, pa.Array])
def test_any_other_annotation_is_an_error_that_lists_what_there_is(annotation):
    with pytest.raises(InvalidArgument, match=r"'flights'.*pyarrow\.Table"):
        load_type_of(annotation, "pandas", name="flights")


def test_a_default_that_does_not_exist_is_an_error():
    with pytest.raises(InvalidArgument, match="not 'panda'"):
        load_type_of(Any, "panda", name="flights")
