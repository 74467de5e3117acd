"""The examples in the README and the guides run, and name what the package has."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from dagster_delta import DeltaIOManager, DeltaTable

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLE = re.compile(r"```python(?: title=.*?)?\n(.*?)```", re.DOTALL)
TITLED = re.compile(r'```python title="(.*?)"\n(.*?)```', re.DOTALL)
ASSETS = (ROOT / "docs/assets.md").read_text()
LINK = re.compile(r"\]\((?!https?://)([^)#]+)\)")

EXAMPLES = [
    pytest.param(code, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, code in enumerate(EXAMPLE.findall(page.read_text()))
]


def example(page: str, holding: str) -> str:
    (code,) = (each for each in EXAMPLE.findall((ROOT / page).read_text()) if holding in each)
    return str(code)


def run(code: str, **names: Any) -> dict[str, Any]:
    names["__name__"] = "example"
    exec(compile(code, "README.md", "exec", dont_inherit=True), names)
    return names


@pytest.mark.parametrize("code", EXAMPLES)
def test_an_example_is_python_and_imports_what_exists(code: str) -> None:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module == "dagster_delta":
            package = importlib.import_module(node.module)
            assert all(hasattr(package, each.name) for each in node.names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_inside_the_repository_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize(
    ("title", "code"), [pytest.param(*block, id=block[0]) for block in TITLED.findall(ASSETS)]
)
def test_an_asset_does_the_same_in_every_type(
    title: str,
    code: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    if title == "Spark":
        request.getfixturevalue("spark")

    @dg.asset
    def planes() -> pa.Table:
        return pa.table({"tailnum": ["N10156", "N102UW"], "seats": [55, 182]})

    assets = [planes, run(code)["big_planes"]]
    manager = DeltaIOManager(root_uri=str(tmp_path))
    assert dg.materialize(assets, resources={"io_manager": manager}).success
    rows = DeltaTable(str(tmp_path / "public/big_planes")).snapshot().scan().to_arrow()
    assert rows.to_pylist() == [{"tailnum": "N102UW", "seats": 182}]


def test_the_first_example_makes_two_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    defs = run(example("README.md", "def big_planes"))["defs"]
    assert dg.materialize(list(defs.assets), resources=dict(defs.resources)).success
    scan = DeltaTable("lake/public/big_planes").snapshot().scan()
    assert scan.to_arrow().to_pylist() == [{"tailnum": "N102UW", "seats": 182}]


def test_the_calls_of_the_python_api_do_what_their_comments_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    monkeypatch.chdir(tmp_path)
    day = pa.array(["2013-01-02"]).cast(pa.date32())
    frame = pa.table({"tailnum": ["N1"], "seats": [120], "model": ["737-800"], "day": day})
    properties = {"delta.enableChangeDataFeed": "true", "delta.enableDeletionVectors": "true"}
    table = DeltaTable.create("lake/public/planes", frame.schema, properties=properties)
    while table.version() < 7:
        table.append(frame)
    names = run(example("docs/python.md", "when_matched_update_all"), frame=frame, spark=spark)
    assert names["scan"].count() == 7
    assert names["table"].snapshot().scan(["seats"]).to_arrow().to_pylist() == [{"seats": 120}]
    assert "deletionVectors" not in (names["table"].protocol().reader_features or ())
    assert DeltaTable("lake/public/orders").metadata().partition_columns == ("day",)


def test_a_variant_is_written_and_read_as_shown(tmp_path: Path) -> None:
    code = example("docs/python.md", "variants_from_json").replace("/tmp/events", str(tmp_path))
    *statements, shown = code.rstrip().splitlines()
    expression, _, comment = shown.partition("  # ")
    names = run("\n".join(statements), pa=pa)
    assert eval(expression, names) == ast.literal_eval(comment)
