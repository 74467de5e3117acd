"""The pages of the documentation say what the code is: names, files, features, keys, examples.

`make site` checks their links and builds the site.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import dagster_delta
from dagster_delta import DeltaTable, errors
from dagster_delta.evolution.properties import KNOWN_PROPERTIES
from dagster_delta.orchestration.metadata_keys import METADATA_KEYS
from docs import features, reference

PACKAGE = Path(dagster_delta.__file__).parent
ROOT = Path(__file__).parents[1]
PAGES = {page: page.read_text() for page in sorted((ROOT / "docs").rglob("*.md"))}
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
_NO_METADATA = {"delta/merge_config", "delta/partition_expr", "delta/full_refresh"}
"""Options of an asset, and a tag of a run that is also a key."""


def test_every_public_name_is_on_one_page() -> None:
    described = [
        name
        for text in PAGES.values()
        for name in re.findall(r"(?m)^<!-- ::: dagster_delta\.(\w+) -->$", text)
    ]
    assert sorted(set(described)) == sorted(described)
    expected = {name for name in dagster_delta.__all__ if name not in {"__version__"}}
    assert {*described, "DeltaError"} - {"errors"} == expected


def test_every_error_is_drawn_below_its_base() -> None:
    drawn = [line.rstrip() for line in (inspect.getdoc(errors) or "").splitlines()]
    tree = [line.split() for line in drawn if "── " in line]
    names = [words[words.index(next(w for w in words if w[0].isalpha()))] for words in tree]
    assert names == [kind.__name__ for kind in subclasses(errors.DeltaError)]


def subclasses(kind: type[Exception]) -> Iterator[type[Exception]]:
    """Those of the library itself, each before its own; the suite makes others."""
    for each in kind.__subclasses__():
        if each.__module__ == errors.__name__:
            yield each
            yield from subclasses(each)


def test_the_table_of_features_is_up_to_date() -> None:
    assert features.PAGE.read_text() == features.render(), "run `make docs`"


@pytest.mark.parametrize("page", reference.pages(), ids=lambda page: page.stem)
def test_the_api_reference_says_what_the_docstrings_say(page: Path) -> None:
    assert page.read_text() == reference.render(page.read_text()), "run `make docs`"


def test_the_page_of_features_says_what_is_done_about_every_property() -> None:
    rows = re.findall(r"(?m)^\| `(delta\.[^`]+)` \| ([a-z ]+) \| .+ \|$", features.PAGE.read_text())
    assert rows == sorted(KNOWN_PROPERTIES.items(), key=lambda row: row[0].lower())


def test_the_page_of_features_names_its_tests() -> None:
    text = features.PAGE.read_text()
    assert len(features.demonstrations()) > 100
    assert all("#" in link for link in re.findall(r"\[yes\]\(([^)]*)\)", text))


@pytest.mark.parametrize(("path", "function"), sorted(features.demonstrations()))
def test_each_claimed_feature_names_a_test_that_exists(path: str, function: str) -> None:
    tree = ast.parse((ROOT / path).read_text())
    names = {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    assert function in names


def test_every_metadata_key_of_the_code_is_on_its_page() -> None:
    recorded = {
        key
        for path in (PACKAGE / "orchestration").rglob("*.py")
        for key in re.findall(r'"((?:delta|spark)/[a-z_]+)"', path.read_text())
    }
    assert len(recorded) > 50
    text = (ROOT / "docs" / "metadata.md").read_text()
    described = set(re.findall(r"`([a-z]+/[a-z_]+)`", text))
    assert recorded - described - _NO_METADATA == set()
    # Those of tables are in the order of the UI.
    listed = re.findall(r"(?m)^\| `([^`]+)` \|.*\|.*\|$", text.partition("\n## ")[0])
    assert tuple(listed) == METADATA_KEYS


def test_every_file_of_the_architecture_exists() -> None:
    named = set(re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", ARCHITECTURE))
    assert len(named) > 60
    named.discard("tests/test_pages.py")
    assert {path for path in named if not (PACKAGE / path).exists()} == set()


def test_every_function_of_the_architecture_is_defined_in_its_file() -> None:
    named = re.findall(r"`((?:\w+/)+\w+\.py)` `(\w+)`", ARCHITECTURE)
    assert len(named) > 40
    missing = [
        (path, name)
        for path, name in named
        if not re.search(rf"\b(?:def|class) {name}\b", (PACKAGE / path).read_text())
    ]
    assert missing == []


def test_every_room_is_in_the_architecture() -> None:
    drawn = ARCHITECTURE.partition("## Layers")[2].partition("```\n\n")[0]
    rooms = {path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")}
    names = {room.rpartition("/")[2] for room in rooms if "/" in room}
    assert {name for name in names if f"{name}/" not in drawn} == set()


@pytest.mark.parametrize(
    "package",
    sorted(p.parent.relative_to(PACKAGE).as_posix() for p in PACKAGE.rglob("*/__init__.py")),
)
def test_each_package_names_its_tests(package: str) -> None:
    line = re.search(r"(?m)^Tested by (.+)\.$", (PACKAGE / package / "__init__.py").read_text())
    assert line is not None
    named = re.findall(r"`(tests/[^`]+)`", line[1])
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def run_example(beginning: str) -> None:
    """Materialize the assets of the example of a type handler that begins with a line."""
    page = (ROOT / "docs" / "types.md").read_text()
    (code,) = re.findall(rf"```python\n({re.escape(beginning)}.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {"__name__": __name__}
    exec(code, names)
    defs: dg.Definitions = names["defs"]
    job = defs.resolve_implicit_global_asset_job_def()
    job.execute_in_process(instance=dg.DagsterInstance.ephemeral())


def test_the_example_of_a_type_handler_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_example("from collections")
    rows = DeltaTable("lake/public/big_planes").snapshot().scan().to_arrow()
    assert rows.to_pylist() == [{"tailnum": "N102UW", "seats": 182}]


def test_the_example_of_a_type_handler_for_geometries_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("geopandas", reason="geometries need geopandas")
    from shapely import from_wkb

    monkeypatch.chdir(tmp_path)
    run_example("from typing import Any")
    rows = DeltaTable("lake/public/circles").snapshot().scan().to_arrow()
    assert from_wkb(rows["geometry"][0].as_py()).bounds == pytest.approx((9.6, 52.3, 9.8, 52.5))
