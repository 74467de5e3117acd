"""Make a release: version, changelog, wheel and sdist, tried in an empty environment, and a tag.

`python .ci/release.py 0.2.0` writes the version and the heading of the changelog, builds both files
twice with the time of the last commit as SOURCE_DATE_EPOCH, compares their hashes, installs each of
them into an empty environment where every public name is imported, commits and tags. Nothing is
uploaded. If a step fails, the version and the changelog are as before.
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSION_FILE = Path("dagster_delta") / "_version.py"
CHANGELOG = Path("CHANGELOG.md")
_VERSION = re.compile(r'(?m)^__version__ = "([^"]+)"$')
_UNRELEASED = "## Unreleased\n"


def numbers(version: str) -> tuple[int, ...]:
    """The parts of a version such as 1.2.3.

    Raises:
        ValueError: it is not of this form.
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ValueError(f"a version is three numbers, as 1.2.3; {version!r} is not")
    return tuple(map(int, version.split(".")))


def set_version(text: str, version: str) -> str:
    """The text of `_version.py` with another version.

    Raises:
        ValueError: the version is lower than the one before.
    """
    found = _VERSION.search(text)
    if found is None:
        raise ValueError(f"{VERSION_FILE} has no version")
    if numbers(version) < numbers(found[1]):
        raise ValueError(f"{version} is lower than {found[1]}, the version in {VERSION_FILE}")
    return _VERSION.sub(f'__version__ = "{version}"', text)


def set_heading(text: str, version: str, day: dt.date) -> str:
    """The changelog with what is unreleased under a heading of this version.

    Raises:
        ValueError: nothing is unreleased, or the version has a heading.
    """
    if f"## {version} " in text:
        raise ValueError(f"{CHANGELOG} has a heading of {version}: choose another version")
    _, heading, rest = text.partition(_UNRELEASED)
    if not heading or not rest.partition("\n## ")[0].strip():
        raise ValueError(f"{CHANGELOG} has nothing below '## Unreleased'")
    return text.replace(_UNRELEASED, f"{_UNRELEASED}\n## {version} - {day.isoformat()}\n", 1)


def build(directory: Path, epoch: str) -> dict[str, str]:
    """SHA-256 by name of the wheel and the sdist, built into an empty directory.

    Args:
        directory: is deleted first.
        epoch: seconds, for SOURCE_DATE_EPOCH.
    """
    shutil.rmtree(directory, ignore_errors=True)
    command = ["uv", "build", "--quiet", "--out-dir", str(directory)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"SOURCE_DATE_EPOCH": epoch}, check=True)
    built = sorted([*directory.glob("*.whl"), *directory.glob("*.tar.gz")])
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in built}


def _git(*arguments: str) -> str:
    return subprocess.check_output(["git", *arguments], cwd=ROOT, text=True).strip()


def _build_and_try() -> dict[str, str]:
    epoch = _git("log", "-1", "--format=%ct")
    hashes = build(ROOT / "dist", epoch)
    if hashes != build(ROOT / "build" / "again", epoch):
        raise ValueError("two builds differ: the build depends on something else than the sources")
    smoke = [sys.executable, str(ROOT / ".ci" / "clean_environment.py"), "--smoke"]
    for name in hashes:
        subprocess.run([*smoke, str(ROOT / "dist" / name)], check=True)
    return hashes


def release(version: str, day: dt.date) -> dict[str, str]:
    """Make the release; the hashes of its files.

    Raises:
        ValueError: the version, the changelog or the work tree does not allow it.
    """
    if _git("status", "--porcelain", "--untracked-files=no"):
        raise ValueError("there are changes that are not committed: commit them first")
    before = {path: (ROOT / path).read_text() for path in (VERSION_FILE, CHANGELOG)}
    after = {
        VERSION_FILE: set_version(before[VERSION_FILE], version),
        CHANGELOG: set_heading(before[CHANGELOG], version, day),
    }
    try:
        for path, text in after.items():
            (ROOT / path).write_text(text)
        hashes = _build_and_try()
        _git("commit", "--quiet", "-m", f"Release {version}", "--", *map(str, after))
    except BaseException:
        for path, text in before.items():
            (ROOT / path).write_text(text)
        raise
    _git("tag", "-a", f"v{version}", "-m", f"Release {version}")
    return hashes


def main() -> None:
    """Make the release that is asked for, and say what is left to do."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version")
    version = parser.parse_args().version
    try:
        hashes = release(version, dt.datetime.now(dt.UTC).date())
    except ValueError as error:
        sys.exit(f"release: {error}")
    for name, digest in hashes.items():
        print(f"{digest}  dist/{name}")
    print(f"Released {version} here. To publish it: git push --follow-tags, and upload dist/*")


if __name__ == "__main__":
    main()
