"""Random histories of production and two branches, beside a model in Python."""

from __future__ import annotations

import random
from pathlib import Path

from dagster_delta.errors import CommitConflict, DataFileMissing, VersionNotFound
from dagster_delta.table.branches.branch import Branch
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.read.branch_tables import BranchBase
from tests.table.branches.conftest import PROPERTIES, begin, check_feed, digest, rows

_OF_ROWS = ("append", "delete", "update", "merge", "overwrite", "optimize")
_OTHERS = ("restore", "clean", "vacuum", "column")


class History:
    """Random writes to production and two branches, beside what their tables should hold."""

    def __init__(self, root: str, draw: random.Random) -> None:
        self.draw, self.root = draw, root
        self.production = DeltaTable(f"{root}/t", must_exist=False)
        mapping = {"delta.columnMapping.mode": "name"} if draw.random() < 0.5 else {}
        by = ["v"] if draw.random() < 0.3 else []
        own = {
            key: "true"
            for key in PROPERTIES
            if key == "delta.enableChangeDataFeed" or draw.random() < 0.5
        }
        self.production.append(rows(0, 1, 2), properties={**own, **mapping}, partition_by=by)
        self.branches = [Branch(root, name) for name in ("one", "two")]
        self.next = 3
        self.models: dict[str, dict[int, str]] = {"production": {0: "a", 1: "a", 2: "a"}}
        self.past: dict[str, dict[int, dict[int, str]]] = {}
        self.moved: set[str] = set()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            who = self.draw.choice(["production", "one", "two", "one", "two"])
            if who == "production":
                version = self.production.version()
                changes = self.write(self.production, self.models["production"])
                if changes and self.production.version() != version:
                    self.moved |= self.models.keys() - {"production"}
                continue
            branch = self.branches[who == "two"]
            before = digest(f"{self.root}/t")
            if who in self.models and self.draw.random() < 0.3:
                self.publish(branch, before)
            else:
                table = begin(branch, self.production)
                if who not in self.models:
                    self.past.pop(table.uri, None)
                    self.models[who] = dict(self.models["production"])
                self.write(table, self.models[who])
                assert digest(f"{self.root}/t") == before
            self.check()

    def publish(self, branch: Branch, before: dict[str, str]) -> None:
        try:
            [result] = branch.publish().values()
        except (CommitConflict, VersionNotFound) as error:
            # A clean-up may have deleted a commit of which it is not known what it changed.
            was_cleaned = isinstance(error, VersionNotFound)
            assert was_cleaned or branch.name in self.moved
            assert digest(f"{self.root}/t") == before
            self.past.pop(branch.rebase(self.production.uri).uri, None)
            self.models[branch.name] = dict(self.models["production"])
            self.moved.discard(branch.name)
            return
        if result.skipped:
            head = DeltaTable(branch.table_uri(self.production.uri)).snapshot()
            base = BranchBase.of(head)
            assert base is not None
            # A table that the branch has not changed is skipped, whatever production did.
            if base.clone_version != head.version:
                assert branch.name not in self.moved
                assert self.models[branch.name] == self.models["production"]
            return
        assert branch.name not in self.moved
        check_feed(self.production, result.version)
        self.models["production"] = dict(self.models.pop(branch.name))
        self.moved = self.models.keys() - {"production"}

    def write(self, table: DeltaTable, model: dict[int, str]) -> bool:
        """Whether rows or the schema may have changed."""
        past = self.past.setdefault(table.uri, {})
        past[table.version()] = dict(model)
        kind = self.draw.choice([*_OF_ROWS, *_OTHERS])
        if kind in _OTHERS:
            return self._maintain(kind, table, model, past)
        some = self.draw.sample(sorted(model), min(2, len(model))) or [-1]
        named = ", ".join(map(str, some))
        if kind == "append":
            table.append(rows(self.next, value="b"))
            model[self.next] = "b"
            self.next += 1
        elif kind == "delete":
            table.delete(f"id in ({named})")
            for key in some:
                model.pop(key, None)
        elif kind == "update":
            table.update(set={"v": f"'u{self.next}'"}, where=f"id in ({named})")
            model.update({key: f"u{self.next}" for key in some if key in model})
        elif kind == "merge":
            source = rows(*some, value="m")
            merge = table.merge(source, "t.id = s.id", schema_mode="merge")
            merge.when_matched_update_all().when_not_matched_insert_all().execute()
            model.update(dict.fromkeys(some, "m"))
        elif kind == "overwrite":
            table.overwrite(rows(self.next))
            model.clear()
            model[self.next] = "a"
            self.next += 1
        else:
            # So that the version moves on, and rows with it.
            table.append(rows(self.next, value="o"))
            model[self.next] = "o"
            self.next += 1
            table.optimize(target_file_size=1 << 30)
        return True

    def _maintain(
        self, kind: str, table: DeltaTable, model: dict[int, str], past: dict[int, dict[int, str]]
    ) -> bool:
        if kind == "restore":
            version = self.draw.choice(sorted(past))
            try:
                table.restore(version)
            except (VersionNotFound, DataFileMissing):
                return False
            model.clear()
            model.update(past[version])
        elif kind == "clean":
            table.checkpoint()
            for commit in Path(table.uri, "_delta_log").glob("*.json"):
                if commit.stem.isdecimal() and int(commit.stem) < table.version():
                    commit.unlink()
            return False
        elif kind == "vacuum":
            table.vacuum(0, enforce_retention=False, dry_run=False)
            return False
        elif table.schema().get("n") is None:
            table.add_column("n", "INT")
        else:
            table.update(set={"n": str(self.next)}, where="id > 2")
        return True

    def check(self) -> None:
        for name, model in self.models.items():
            table = (
                self.production
                if name == "production"
                else self.branches[name == "two"].open(self.production.uri)
            )
            found = table.refresh().scan(["id", "v"]).to_arrow().to_pylist()
            assert sorted((row["id"], row["v"]) for row in found) == sorted(model.items())
