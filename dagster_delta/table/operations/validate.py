"""Validation: whether the rows of a table satisfy constraints that a change asks of them.

Spec: Column Invariants; CHECK Constraints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

import dagster_delta.arrow_compute as pc
from dagster_delta.engines.engine import Engine
from dagster_delta.errors import MAX_EXAMPLES, ConstraintViolation
from dagster_delta.protocol.log.replay import keys_of
from dagster_delta.protocol.values.arrow_columns import string_column
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.table.read.file_planner import CandidateFiles, read_plan
from dagster_delta.table.read.snapshot import Snapshot

if TYPE_CHECKING:
    from dagster_delta.evolution.plan import SchemaChangePlan


class RowValidation(msgspec.Struct):
    """Checks for existing rows that a change would not allow; caches its results."""

    engine: Engine
    _seen: dict[tuple[str, str], set[str]] = msgspec.field(default_factory=dict)
    """Keys of the files whose rows satisfy a constraint, by constraint."""

    def run(self, snapshot: Snapshot, plan: SchemaChangePlan) -> None:
        """Check that every row of a version satisfies every constraint of a plan.

        Files whose statistics prove it are not read. A broken constraint is a ConstraintViolation
        with a few such rows as examples.
        """
        files = snapshot.live_files()
        keys = keys_of(files["path"], files["deletion_vector"])
        for check in plan.checks:
            # The newline ends a comment at the end of the text.
            sql = f"({check.sql}\n) IS NOT TRUE"
            broken = parse_expression(sql, plan.after.schema, self.engine.time_zone)
            seen = self._seen.setdefault((check.name, check.sql), set())
            new = files.filter(pc.invert(pc.is_in(keys, value_set=string_column(sorted(seen)))))
            suspicious = CandidateFiles.among(new, plan.after, broken.typed).files
            read = read_plan(snapshot, suspicious, broken, plan.after)
            examples = self.engine.first_rows(read, MAX_EXAMPLES) if suspicious.num_rows else ()
            if examples:
                raise ConstraintViolation(
                    f"the table holds rows that break {check.name} ({check.sql}): correct or "
                    "delete them first",
                    table=snapshot.store.location.uri,
                    version=snapshot.version,
                    examples=tuple(map(repr, examples)),
                )
            seen.update(keys.to_pylist())
