"""Errors as they come back from another process."""

from __future__ import annotations

import pickle

import pytest

from dagster_delta import errors
from dagster_delta.errors import DeltaError

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type)]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if issubclass(kind, DeltaError)])
def test_an_error_keeps_its_facts_in_another_process(kind: type[DeltaError]) -> None:
    error = kind("it failed", table="s3://u:secret@b/t", version=7, column="a.b", examples=("1",))
    error.message += " again"
    error.file = "part-0.parquet"
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert vars(copy) == vars(error)
    assert str(copy) == str(error)
    assert "secret" not in repr(vars(copy))
