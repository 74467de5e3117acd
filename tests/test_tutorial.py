"""The tutorial can be followed: its files are saved, and its commands run, in one process.

`make clean-environment` runs the same page with the commands themselves.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import runpy
import shlex
import sys
from pathlib import Path

import dagster as dg
import pytest
import yaml

from docs.walk import SavedFile, steps

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


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
        parser = argparse.ArgumentParser()
        for option in ("--select", "--partition", "--partition-range", "-j", "-c", "-f"):
            parser.add_argument(option)
        kind = " ".join(arguments[:2])
        given = parser.parse_args(arguments[2:])
        defs = self._definitions(given.f)
        if kind == "asset materialize":
            self._materialize(defs, given)
        else:
            assert kind == "job execute", line
            config = yaml.safe_load((self.directory / given.c).read_text()) if given.c else None
            job = defs.resolve_job_def(given.j)
            assert job.execute_in_process(run_config=config, instance=self.instance).success
        return ""

    def _python(self, name: str) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            runpy.run_path(str(self.directory / name))
        return printed.getvalue()

    def _definitions(self, name: str) -> dg.Definitions:
        for saved in self.directory.glob("*.py"):
            sys.modules.pop(saved.stem, None)
        importlib.invalidate_caches()
        found: dg.Definitions = runpy.run_path(str(self.directory / name))["defs"]
        return found

    def _materialize(self, defs: dg.Definitions, given: argparse.Namespace) -> None:
        tags = {}
        if given.partition_range:
            first, _, last = given.partition_range.partition("...")
            tags = {
                "dagster/asset_partition_range_start": first,
                "dagster/asset_partition_range_end": last,
            }
        job = defs.resolve_implicit_global_asset_job_def()
        done = job.execute_in_process(
            run_config=QUIET,
            instance=self.instance,
            asset_selection=[dg.AssetKey(each) for each in given.select.split(",")],
            partition_key=given.partition,
            tags=tags,
        )
        assert done.success


def test_each_step_of_the_tutorial_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    with dg.DagsterInstance.ephemeral() as instance:
        shell = Shell(tmp_path, instance)
        for step in steps(PAGE):
            if isinstance(step, SavedFile):
                (tmp_path / step.name).write_text(step.text)
                continue
            printed = shell.run(step.line)
            assert not step.printed or printed.strip() == step.printed, step.line
    for name in set(sys.modules) - before:
        if (tmp_path / f"{name}.py").exists():
            del sys.modules[name]
