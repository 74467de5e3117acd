"""What the package asks of pandas and pyarrow is what the installed pyspark works with."""

from __future__ import annotations

import re
import tomllib
import warnings
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from pyspark.sql.pandas import utils as pyspark_checks

_PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
_DECLARED: dict[str, SpecifierSet] = {
    canonicalize_name(asked.name): asked.specifier
    for asked in map(Requirement, _PROJECT["project"]["dependencies"])
}
# pyspark has its table as code alone.
_CHECKS = Path(pyspark_checks.__file__).read_text()


def lowest(package: str) -> Version:
    """The lowest version that pyspark takes."""
    found = re.search(rf'minimum_{package}_version = "([\d.]+)"', _CHECKS)
    assert found, f"pyspark does not say its lowest version of {package} in the way it used to"
    return Version(found[1])


def bounds(package: str, *operators: str) -> list[Version]:
    return [Version(each.version) for each in _DECLARED[package] if each.operator in operators]


@pytest.mark.parametrize("package", ["pandas", "pyarrow"])
def test_no_version_is_allowed_that_pyspark_refuses(package: str) -> None:
    assert max(bounds(package, ">=")) >= lowest(package)


def test_pandas_ends_where_pyspark_begins_to_warn_of_it() -> None:
    warned_from = re.search(r'pandas\.__version__\) >= LooseVersion\("([\d.]+)"\)', _CHECKS)
    limits = bounds("pandas", "<")
    if warned_from is None:
        assert not limits, "this pyspark warns of no pandas: raise the bound in pyproject.toml"
    else:
        assert [each.release[0] for each in limits] == [Version(warned_from[1]).release[0]]


def test_pyspark_takes_the_installed_versions_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pyspark_checks.require_minimum_pandas_version()
        pyspark_checks.require_minimum_pyarrow_version()
        pyspark_checks.require_minimum_numpy_version()


def test_the_install_page_lists_every_extra() -> None:
    page = (Path(__file__).parents[1] / "docs/install.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert listed == set(_PROJECT["project"]["optional-dependencies"])
