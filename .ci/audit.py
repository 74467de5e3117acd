"""Known vulnerabilities of the locked dependencies, as the package index publishes them.

One in a dependency of the product fails; one in a tool of its developers is only printed. Those
that are accepted are listed in audit-allowed.txt, each with its reason. Where the index serves no
such data, which mirrors seldom do, one line says so and nothing fails.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PRODUCT = "dagster-delta-protocol"
EXTRAS = ("s3", "gcs", "azure", "polars", "connect", "webserver")
"""What users may install. The demo is not among it."""

_TIMEOUT_SECONDS = 20
_WORKERS = 8


@dataclass(frozen=True, slots=True)
class Vulnerability:
    """One that is known of a locked version."""

    package: str
    version: str
    id: str
    aliases: tuple[str, ...]
    fixed_in: tuple[str, ...]
    summary: str

    def __str__(self) -> str:
        fixed = f"fixed in {', '.join(self.fixed_in)}" if self.fixed_in else "not fixed yet"
        return f"{self.package} {self.version}: {self.id} ({fixed}) {self.summary}".rstrip()


class OutOfReach(Exception):
    """The index did not answer."""


def locked_versions(text: str) -> dict[str, str]:
    """Canonical names of the packages of a lock file, and their versions for this platform."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith(("#", "-")):
            continue
        requirement = Requirement(line.split("#")[0].strip())
        exact = re.fullmatch(r"==\s*([^,\s]+)", str(requirement.specifier))
        if exact and (requirement.marker is None or requirement.marker.evaluate()):
            found[canonicalize_name(requirement.name)] = exact[1]
    return found


def allowed_ids(text: str) -> dict[str, str]:
    """Ids that are accepted, and why: a line is an id and a reason.

    Raises:
        SystemExit: a line has no reason.
    """
    found = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, _, reason = line.strip().partition(" ")
        if not reason.strip():
            sys.exit(f"audit: {name} is accepted without a reason; write one behind it")
        found[name] = reason.strip()
    return found


def runtime_packages(product: str = PRODUCT, extras: Iterable[str] = EXTRAS) -> frozenset[str]:
    """Canonical names of what the product depends on, as far as it is installed."""
    seen: set[tuple[str, str]] = set()
    pending = [(canonicalize_name(product), extra) for extra in ("", *extras)]
    while pending:
        package, extra = pending.pop()
        if (package, extra) in seen:
            continue
        seen.add((package, extra))
        try:
            lines = requires(package) or []
        except PackageNotFoundError:
            continue
        for line in lines:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                name = canonicalize_name(requirement.name)
                pending += [(name, wanted) for wanted in ("", *requirement.extras)]
    return frozenset(package for package, _ in seen) - {canonicalize_name(product)}


def known_vulnerabilities(base_url: str, package: str, version: str) -> list[Vulnerability]:
    """What the index knows of one version.

    Raises:
        OutOfReach: it does not answer, or with something else.
    """
    url = f"{base_url.rstrip('/')}/{package}/{version}/json"
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as answer:
            entries = json.load(answer)["vulnerabilities"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OutOfReach(type(error).__name__) from error
    return [_decode(package, version, entry) for entry in entries if not entry.get("withdrawn")]


def _decode(package: str, version: str, entry: Mapping[str, Any]) -> Vulnerability:
    return Vulnerability(
        package,
        version,
        str(entry["id"]),
        tuple(entry.get("aliases") or ()),
        tuple(entry.get("fixed_in") or ()),
        " ".join(str(entry.get("summary") or "").split())[:200],
    )


def audit(base_url: str, locked: Mapping[str, str]) -> tuple[list[Vulnerability], list[str]]:
    """What is known of all locked versions, and the packages that the index has no answer for.

    Raises:
        OutOfReach: the index does not answer; it is not asked for all packages to find that out.
    """
    packages = sorted(locked.items())
    found = known_vulnerabilities(base_url, *packages[0])
    unanswered = []
    with ThreadPoolExecutor(_WORKERS) as workers:
        asked = {
            name: workers.submit(known_vulnerabilities, base_url, name, version)
            for name, version in packages[1:]
        }
        for name, answer in asked.items():
            try:
                found += answer.result()
            except OutOfReach:
                unanswered.append(name)
    return found, unanswered


def default_url() -> str:
    """Where pip's own default index keeps its data."""
    from pip._internal.models.index import PyPI

    return PyPI.pypi_url


def main(arguments: list[str] | None = None) -> int:
    """Print what is known; 1 where the product depends on something vulnerable, else 0."""
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lock", type=Path, default=here.parent / "requirements-dev.lock")
    parser.add_argument("--allowed", type=Path, default=here / "audit-allowed.txt")
    parser.add_argument("--url", default=None, help="of the vulnerability data")
    options = parser.parse_args(arguments)
    locked = locked_versions(options.lock.read_text())
    allowed = allowed_ids(options.allowed.read_text())
    try:
        found, unanswered = audit(options.url or default_url(), locked)
    except (OutOfReach, ImportError) as error:
        print(f"audit: the vulnerability data are out of reach from here ({error}): not audited")
        return 0
    runtime = runtime_packages()
    failed = False
    for entry in found:
        reasons = [allowed[name] for name in (entry.id, *entry.aliases) if name in allowed]
        if reasons:
            print(f"accepted: {entry}: {reasons[0]}")
        elif entry.package in runtime:
            failed = True
            print(f"VULNERABLE: {entry}")
        else:
            print(f"in a tool of the developers: {entry}")
    if unanswered:
        print(f"audit: the index has no answer for {', '.join(unanswered)}")
    print(f"audit: {len(locked)} locked packages, {len(found)} known vulnerabilities")
    if failed:
        print("audit: raise the versions with make lock, or accept one in .ci/audit-allowed.txt")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
