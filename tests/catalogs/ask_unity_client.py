"""Judges messages of Unity Catalog by the models of its own client for Python.

It runs in the environment of `unitycatalog-client`, so that it imports nothing of this library. It
reads messages as JSON lines, `{"model", "body"}`, and writes one line of problems for each.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from typing import Any

# Teaches the models the spelling of Delta's types.
SPELLING = importlib.import_module("unitycatalog.delta.internal.serde.delta_data_type_module")


def complete_models() -> None:
    """Let each kind of a requirement and of an update read and write its own fields: the generated
    methods of version 0.7.0 know those of the base class alone.
    """
    for base in (find_model("DeltaTableRequirement"), find_model("DeltaTableUpdate")):
        kinds = getattr(base, f"_{base.__name__}__discriminator_value_class_map")
        for name in kinds.values():
            kind = find_model(name)
            kind.from_dict, kind.to_dict = classmethod(read_fields), write_fields
    find_model("DeltaStructType").from_dict = classmethod(lambda _, found: read_type(found))


def read_type(found: Any) -> Any:
    return None if found is None else SPELLING._parse_type(found)


def read_fields(model: Any, found: Any) -> Any:
    columns = {"columns": read_type(found["columns"])} if "columns" in found else {}
    return model.model_validate({**found, **columns})


def write_fields(message: Any) -> Any:
    found = message.model_dump(by_alias=True, exclude_none=True)
    if "columns" in found:
        found["columns"] = SPELLING._type_to_dict(message.columns)
    return found


def find_model(name: str) -> Any:
    part = "delta" if name.startswith("Delta") else "client"
    file = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return getattr(importlib.import_module(f"unitycatalog.{part}.models.{file}"), name)


def list_differences(sent: Any, understood: Any, place: str) -> list[str]:
    """What the model left out, or understood as something else."""
    if place.endswith(".metadata") and ".fields[" in place:
        # Of a column: any keys.
        return []
    if isinstance(sent, dict) and isinstance(understood, dict):
        return [
            problem
            for key, value in sent.items()
            for problem in (
                list_differences(value, understood[key], f"{place}.{key}")
                if key in understood
                else [f"{place}.{key} is unknown"] * (value is not None)
            )
        ]
    if isinstance(sent, list) and isinstance(understood, list) and len(sent) == len(understood):
        pairs = zip(sent, understood, strict=True)
        return [
            problem
            for number, (one, other) in enumerate(pairs)
            for problem in list_differences(one, other, f"{place}[{number}]")
        ]
    return [] if sent == understood else [f"{place} is {sent!r}, understood as {understood!r}"]


def judge(model: str, body: Any) -> str:
    """What is wrong with a message; empty if nothing is."""
    try:
        understood = find_model(model).from_dict(body)
        again = json.loads(json.dumps(understood.to_dict(), default=str))
    except Exception as error:  # noqa: BLE001 - whatever the models say
        return f"{model}: {error}".replace("\n", " ")
    return "; ".join(list_differences(body, again, model))


if __name__ == "__main__":
    complete_models()
    for line in sys.stdin:
        message = json.loads(line)
        sys.stdout.write(f"{judge(message['model'], message['body'])}\n")
