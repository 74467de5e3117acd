"""The commands of a page, run in this process: `dg` and `python`."""

from __future__ import annotations

import contextlib
import importlib
import io
import runpy
import shlex
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster_dg_cli.cli.launch import launch_command

from docs.walk import Command, SavedFile, steps

_CHECKED = """All component YAML validated successfully.
All definitions loaded successfully.
"""
_QUIET: dict[str, object] = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


class Shell:
    """Runs the commands of the page in this process."""

    def __init__(self, directory: Path, instance: dg.DagsterInstance) -> None:
        self.directory = directory
        self.instance = instance

    def run(self, line: str) -> str:
        """What the command prints."""
        program, *arguments = shlex.split(line)
        if program == "python":
            return self._python(arguments[0])
        assert program == "dg"
        if arguments == ["check", "defs"]:
            dg.Definitions.validate_loadable(self._definitions())
            return _CHECKED
        command, *options = arguments
        assert command == "launch", line
        self._launch(**launch_command.make_context("dg launch", options).params)
        return ""

    def _python(self, name: str) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            runpy.run_path(str(self.directory / name))
        return printed.getvalue()

    def _definitions(self, python_file: str | None = None) -> dg.Definitions:
        found: dg.Definitions
        if python_file:
            found = runpy.run_path(str(self.directory / python_file))["defs"]
            return found
        project = tomllib.loads((self.directory / "pyproject.toml").read_text())["tool"]["dg"]
        package = project["project"]["root_module"]
        forget(package)
        importlib.invalidate_caches()
        found = importlib.import_module(f"{package}.definitions").defs
        return found

    def _launch(
        self,
        *,
        assets: str | None,
        job: str | None,
        partition: str | None,
        partition_range: str | None,
        config: Sequence[str],
        python_file: str | None,
        **_: object,
    ) -> None:
        defs = self._definitions(python_file)
        tags = {}
        if partition_range:
            first, _separator, last = partition_range.partition("...")
            tags = {
                "dagster/asset_partition_range_start": first,
                "dagster/asset_partition_range_end": last,
            }
        run_config: dict[str, object] = {} if job else _QUIET
        for path in config:
            run_config |= yaml.safe_load(Path(path).read_text())
        launched = (
            defs.resolve_job_def(job) if job else defs.resolve_implicit_global_asset_job_def()
        )
        done = launched.execute_in_process(
            run_config=run_config,
            instance=self.instance,
            asset_selection=_keys(assets),
            partition_key=partition,
            tags=tags,
        )
        assert done.success


def _keys(assets: str | None) -> list[dg.AssetKey] | None:
    if assets in {None, "*"}:
        return None
    return [dg.AssetKey(key) for key in str(assets).split(",")]


def forget(package: str) -> None:
    """Import the package again: its files have changed."""
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]


def follow(page: Path, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """Do what a page says in an empty directory, and give each command that has run."""
    monkeypatch.chdir(directory)
    monkeypatch.syspath_prepend(str(directory))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    with dg.DagsterInstance.ephemeral() as instance:
        shell = Shell(directory, instance)
        for step in steps(page):
            if isinstance(step, SavedFile):
                path = directory / step.name
                path.parent.mkdir(exist_ok=True)
                path.write_text(step.text)
                continue
            printed = shell.run(step.line)
            assert not step.printed or printed.strip() == step.printed, (step.line, printed)
            yield step
