"""The example of docs/types.md works as it is written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_delta import DeltaTable

PAGE = Path(__file__).parents[1] / "docs" / "types.md"


def test_the_example_of_a_type_handler_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = re.findall(r"```python\n(from collections.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {"__name__": __name__}
    exec(code, names)
    monkeypatch.chdir(tmp_path)
    defs: dg.Definitions = names["defs"]
    job = defs.resolve_implicit_global_asset_job_def()
    job.execute_in_process(instance=dg.DagsterInstance.ephemeral())
    rows = DeltaTable("lake/public/big_planes").snapshot().scan().to_arrow()
    assert rows.to_pylist() == [{"tailnum": "N102UW", "seats": 182}]
