"""Functions of variants in the whitelist.

Spark SQL: parse_json, variant_get.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from dagster_delta.protocol.schema import DataType, PrimitiveType
from dagster_delta.sql.functions.signatures import Resolve, calls, fixed, literal_of, of_types
from dagster_delta.sql.typed import Call, Literal, Refusal, Typed, types_of
from dagster_delta.sql.types import BOOLEAN, DOUBLE, STRING, VARIANT

_TARGETS: dict[str, DataType] = {
    "boolean": BOOLEAN,
    "byte": PrimitiveType("byte"),
    "tinyint": PrimitiveType("byte"),
    "short": PrimitiveType("short"),
    "smallint": PrimitiveType("short"),
    "int": PrimitiveType("integer"),
    "integer": PrimitiveType("integer"),
    "long": PrimitiveType("long"),
    "bigint": PrimitiveType("long"),
    "double": DOUBLE,
    "string": STRING,
    "variant": VARIANT,
}

_STEP = re.compile(r"\.([^.\[]+)|\['([^'?]+)'\]|\[\"([^\"?]+)\"\]|\[(\d{1,9})\]")

VariantPath = tuple[str | int, ...]


def _resolve_get(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if len(arguments) not in (2, 3) or types_of(arguments)[0] != VARIANT:
        raise Refusal(f"{name} of these arguments")
    path = literal_of(name, arguments[1], str)
    kind = literal_of(name, arguments[2], str) if len(arguments) == 3 else "variant"
    target = _TARGETS.get(str(kind).strip().lower())
    if target is None:
        raise Refusal(f"{name} as {kind}")
    parse_path(str(path))
    spelled = Literal(str(target), STRING)
    return Call(name, (arguments[0], arguments[1], spelled), target)


def parse_path(text: str) -> VariantPath:
    """The names and positions that lead into a variant.

    Raises:
        Refusal: the text is not a supported path.
    """
    steps: list[str | int] = []
    position = 1
    while position < len(text):
        found = _STEP.match(text, position)
        if found is None:
            break
        name = found[1] or found[2] or found[3]
        steps.append(int(found[4]) if name is None else name)
        position = found.end()
    if not text.startswith("$") or position < len(text):
        raise Refusal(f"the path {text!r} into a variant")
    return tuple(steps)


VARIANT_FUNCTIONS: Mapping[str, Resolve] = {
    "parse_json": fixed(VARIANT, STRING),
    "try_parse_json": fixed(VARIANT, STRING),
    "is_variant_null": calls(BOOLEAN, of_types(VARIANT)),
    "variant_get": _resolve_get,
    "try_variant_get": _resolve_get,
}
