"""The audit fails for what users would run, and never because it cannot look."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

_PATH = Path(__file__).parents[1] / ".ci" / "audit.py"
_SPEC = importlib.util.spec_from_file_location("audit", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
audit: Any = importlib.util.module_from_spec(_SPEC)
sys.modules["audit"] = audit
_SPEC.loader.exec_module(audit)

LOCK = """\
duckdb==2.0.0
pywin32==312 ; sys_platform == 'no such platform'
ruff==1.0.0
"""


@pytest.fixture
def index() -> Iterator[Any]:
    """A package index: `known` are its vulnerabilities by package, None where it has no answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _, package, version, _ = self.path.split("/")
            server.asked.append((package, version))
            entries = server.known.get(package, [])
            self.send_response(404 if entries is None else 200)
            self.end_headers()
            if entries is not None:
                self.wfile.write(json.dumps({"vulnerabilities": entries}).encode())

        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
            pass

    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.known, server.asked = {}, []
    server.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def run(index: Any, tmp_path: Path, allowed: str = "") -> int:
    lock, accepted = tmp_path / "lock", tmp_path / "allowed"
    lock.write_text(LOCK)
    accepted.write_text(allowed)
    result: int = audit.main(["--lock", str(lock), "--allowed", str(accepted), "--url", index.url])
    return result


BAD = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fixed_in": ["2.0.1"], "summary": "It\nbreaks."}


def test_nothing_known_passes_and_asks_for_what_is_locked_here(
    index: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(index, tmp_path) == 0
    assert sorted(index.asked) == [("duckdb", "2.0.0"), ("ruff", "1.0.0")]
    assert "2 locked packages, 0 known" in capsys.readouterr().out


def test_a_vulnerable_dependency_of_the_product_fails(
    index: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index.known = {"duckdb": [BAD]}
    assert run(index, tmp_path) == 1
    assert "VULNERABLE: duckdb 2.0.0: PYSEC-1 (fixed in 2.0.1) It breaks." in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("known", "allowed"),
    [
        ({"ruff": [BAD]}, ""),
        ({"duckdb": [BAD]}, "# why\nPYSEC-1 not reachable from here\n"),
        ({"duckdb": [BAD]}, "CVE-1 not reachable from here\n"),
        ({"duckdb": [{**BAD, "withdrawn": "2026-01-01"}]}, ""),
    ],
    ids=["tool", "accepted", "accepted by alias", "withdrawn"],
)
def test_what_harms_no_user_passes(index: Any, tmp_path: Path, known: Any, allowed: str) -> None:
    index.known = known
    assert run(index, tmp_path, allowed) == 0


def test_an_acceptance_without_a_reason_fails(index: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="without a reason"):
        run(index, tmp_path, "PYSEC-1\n")


def test_data_out_of_reach_are_one_line_one_request_and_no_failure(
    index: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index.known = {"duckdb": None}
    assert run(index, tmp_path) == 0
    assert index.asked == [("duckdb", "2.0.0")]
    (line,) = capsys.readouterr().out.splitlines()
    assert "out of reach" in line


def test_one_package_without_an_answer_hides_nothing_of_the_others(
    index: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index.known = {"ruff": None, "duckdb": [BAD]}
    assert run(index, tmp_path) == 1
    assert "no answer for ruff" in capsys.readouterr().out


def test_the_dependencies_of_the_product_are_told_from_its_tools() -> None:
    found = audit.runtime_packages()
    assert {"duckdb", "dagster", "pydantic", "botocore", "py4j"} <= found
    assert not {"ruff", "pytest", "moto", "dagster-delta-protocol"} & found


def test_the_accepted_ones_of_the_project_all_have_a_reason() -> None:
    audit.allowed_ids((_PATH.parent / "audit-allowed.txt").read_text())
