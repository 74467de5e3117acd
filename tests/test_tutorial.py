"""The tutorial can be followed: its files are saved, and its commands run, in one process.

`make clean-environment` runs the same page with the commands themselves.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import runpy
import shlex
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster_dg_cli.cli.launch import launch_command

from docs.walk import SavedFile, steps

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"
CHECKED = """All component YAML validated successfully.
All definitions loaded successfully.
"""
QUIET: dict[str, object] = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


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
        defs = self._definitions()
        if arguments == ["check", "defs"]:
            dg.Definitions.validate_loadable(defs)
            return CHECKED
        command, *options = arguments
        assert command == "launch", line
        self._launch(defs, **launch_command.make_context("dg launch", options).params)
        return ""

    def _python(self, name: str) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            runpy.run_path(str(self.directory / name))
        return printed.getvalue()

    def _definitions(self) -> dg.Definitions:
        forget("shop")
        importlib.invalidate_caches()
        project = tomllib.loads((self.directory / "pyproject.toml").read_text())["tool"]["dg"]
        module = importlib.import_module(f"{project['project']['root_module']}.definitions")
        found: dg.Definitions = module.defs
        return found

    def _launch(
        self,
        defs: dg.Definitions,
        *,
        assets: str | None,
        job: str | None,
        partition: str | None,
        partition_range: str | None,
        config: Sequence[str],
        **_: object,
    ) -> None:
        tags = {}
        if partition_range:
            first, _separator, last = partition_range.partition("...")
            tags = {
                "dagster/asset_partition_range_start": first,
                "dagster/asset_partition_range_end": last,
            }
        run_config: dict[str, object] = {} if job else QUIET
        for path in config:
            run_config |= yaml.safe_load(Path(path).read_text())
        launched = (
            defs.resolve_job_def(job) if job else defs.resolve_implicit_global_asset_job_def()
        )
        done = launched.execute_in_process(
            run_config=run_config,
            instance=self.instance,
            asset_selection=[dg.AssetKey(key) for key in assets.split(",")] if assets else None,
            partition_key=partition,
            tags=tags,
        )
        assert done.success


def forget(package: str) -> None:
    """Import the package again: its files have changed."""
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]


def test_each_step_of_the_tutorial_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    with dg.DagsterInstance.ephemeral() as instance:
        shell = Shell(tmp_path, instance)
        for step in steps(PAGE):
            if isinstance(step, SavedFile):
                path = tmp_path / step.name
                path.parent.mkdir(exist_ok=True)
                path.write_text(step.text)
                continue
            printed = shell.run(step.line)
            assert not step.printed or printed.strip() == step.printed, step.line
    forget("shop")
