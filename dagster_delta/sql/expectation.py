"""What its writer expects of each row, and what happens to rows that differ.

A condition that is NULL for a row is violated, as a CHECK constraint is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import msgspec

from dagster_delta.errors import InvalidArgument

OnViolation = Literal["warn", "drop", "fail", "quarantine"]


class Expectation(msgspec.Struct, frozen=True):
    """A condition that rows are expected to satisfy, by a name that is unique for its table.

    Raises:
        InvalidArgument: a part is empty, or `on_violation` is none of its values.
    """

    name: str
    """Its name in metrics, metadata and checks."""
    condition: str
    """Spark SQL over the columns of the rows. False and NULL are violations."""
    on_violation: OnViolation = "warn"
    """`warn`: the row is written and counted; `drop`: it is counted and not written; `fail`:
    nothing is written; `quarantine`: it goes to the table beside, with what it violated."""

    def __post_init__(self) -> None:
        for part in ("name", "condition"):
            text = getattr(self, part)
            if not isinstance(text, str) or not text.strip():
                raise InvalidArgument(f"the {part} of an expectation is a text, not {text!r}")
        if self.on_violation not in get_args(OnViolation):
            allowed = ", ".join(map(repr, get_args(OnViolation)))
            raise InvalidArgument(
                f"on_violation of the expectation {self.name!r} is one of {allowed}, not "
                f"{self.on_violation!r}"
            )


def check_expectations(expectations: Sequence[Expectation]) -> tuple[Expectation, ...]:
    """The expectations, whose names are unique.

    Raises:
        InvalidArgument: two have one name, or a value is no expectation.
    """
    names: set[str] = set()
    for expectation in expectations:
        if not isinstance(expectation, Expectation):
            raise InvalidArgument(
                f"expectations takes a list of Expectation(name, condition), not {expectation!r}"
            )
        if expectation.name in names:
            raise InvalidArgument(
                f"two expectations have the name {expectation.name!r}: a name stands for one "
                "condition in metrics and checks"
            )
        names.add(expectation.name)
    return tuple(expectations)
