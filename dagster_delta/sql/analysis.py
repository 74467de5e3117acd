"""The typed tree of a Spark SQL text: columns found, Spark's implicit casts made explicit."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TypeAlias

from msgspec.structs import replace

from dagster_delta.errors import DeltaError, InvalidArgument, SchemaMismatch
from dagster_delta.nearest_name import nearest_name
from dagster_delta.protocol.schema import MapType, StructType
from dagster_delta.sql.casts import cast
from dagster_delta.sql.functions.built_in import OF_ARGUMENTS, OF_THE_SESSION, RANDOM
from dagster_delta.sql.functions.whitelist import WHITELIST, canonical_name, has_column
from dagster_delta.sql.literals import type_from_words
from dagster_delta.sql.parser import (
    CastSyntax,
    Function,
    Name,
    Opaque,
    Syntax,
    columns_in,
    parse_syntax,
)
from dagster_delta.sql.time_zone import ZONE
from dagster_delta.sql.tokens import GrammarUnknown, syntax_error
from dagster_delta.sql.typed import (
    Call,
    Column,
    Literal,
    Refusal,
    Refused,
    Typed,
    column_of,
    is_too_deep,
    types_of,
)
from dagster_delta.sql.types import (
    BOOLEAN,
    INTEGER,
    STRING,
    VARIANT,
    VOID,
    collation_of,
    holds_values,
    sql_type_name,
)

_LOGICAL = ("and", "or", "not")

# Words that name a value if no column has that name.
_NILADIC = OF_THE_SESSION - {"curdate", "current_timezone", "now"}


def _to_typed(syntax: Syntax, schema: StructType) -> Typed:
    """The typed expression; parts outside the whitelist become `Refused`."""
    match syntax:
        case Name((word,)) if word.lower() in _NILADIC and schema.get(word) is None:
            return Refused(word, ())
        case Name(parts):
            return _resolve_column(parts, schema)
        case Literal():
            return syntax
        case Opaque(construct, names):
            return Refused(construct, _columns_among(names, schema))
        case CastSyntax(child, data_type):
            operands = (_to_typed(child, schema),)
            return _unless_refused(
                "CAST", operands, lambda known: _mark_computed(cast(known[0], data_type))
            )
        case Function(".", (base, Literal(str() as name))):
            return _resolve_field(_to_typed(base, schema), name)
        case Function("between", (value, low, high)):
            return _resolve_between(*(_to_typed(operand, schema) for operand in (value, low, high)))
        case Function(name, arguments):
            return _resolve_call(name, tuple(_to_typed(argument, schema) for argument in arguments))


def _resolve_call(name: str, operands: tuple[Typed, ...]) -> Typed:
    if name in _LOGICAL:
        if len(operands) < 2 and name != "not":
            return Refused(f"{name} with {len(operands)} arguments", operands)
        return Call(name, tuple(_check_truth(operand) for operand in operands), BOOLEAN)
    name = canonical_name(name)
    if name in ("variant_get", "try_variant_get"):
        return Refused(f"the function {name}", operands, meaning=_stand_for(operands))
    function = WHITELIST.get(name)
    if function is None or (resolve := function.resolve) is None:
        return _unknown_function(name, operands)
    if not function.takes_count(len(operands)):
        return Refused(f"{name} with {len(operands)} arguments", operands)
    return _unless_refused(
        name,
        operands,
        lambda known: _mark_computed(resolve(name, _with_padded_literals(name, known))),
    )


_ROW_FUNCTIONS = OF_ARGUMENTS | RANDOM | OF_THE_SESSION


def _unknown_function(name: str, operands: tuple[Typed, ...]) -> Refused:
    if name in _ROW_FUNCTIONS or not name.isidentifier():
        return Refused(f"the function {name}", operands)
    near = nearest_name(name, _ROW_FUNCTIONS)
    hint = f" (did you mean {near}?)" if near else ""
    return Refused(
        f"the function {name}, which is not known to compute a value of one row{hint}",
        operands,
        remedy="correct its name, or use the Spark engine if its session defines it",
    )


def _resolve_between(value: Typed, low: Typed, high: Typed) -> Typed:
    if isinstance(value, Column) and value.char_length is not None:
        # Spark pads constants in comparisons, but not these.
        return Refused("BETWEEN of CHAR(n)", (value, low, high))
    return _resolve_call(
        "and", (_resolve_call(">=", (value, low)), _resolve_call("<=", (value, high)))
    )


_Make: TypeAlias = Callable[[tuple[Typed, ...]], Typed]


def _unless_refused(name: str, operands: tuple[Typed, ...], make: _Make) -> Typed:
    for operand in operands:
        if isinstance(operand, Refused):
            return replace(operand, operands=operands, meaning=_find_meaning(name, operands, make))
        if isinstance(operand, Column) and operand.collation is not None and name != "is null":
            return Refused(f"text under the collation {operand.collation}", operands)
    try:
        return make(operands)
    except Refusal as refusal:
        construct, *remedy = refusal.args
        return Refused(construct, operands, *remedy)


def _find_meaning(name: str, operands: tuple[Typed, ...], make: _Make) -> Typed | None:
    """A part with refused operands, over what those mean; None if that is not known."""
    known = tuple(
        meaning if isinstance(operand, Refused) and (meaning := operand.meaning) else operand
        for operand in operands
    )
    if any(isinstance(operand, Refused) for operand in known):
        return None
    try:
        found = _unless_refused(name, known, make)
    except DeltaError:
        # Spark decides whether it is one.
        return None
    return None if isinstance(found, Refused) else found


def _stand_for(operands: tuple[Typed, ...]) -> Typed | None:
    """A column for what `variant_get` takes out of a variant, with a path that
    `leaves_with_statistics` reads.
    """
    from dagster_delta.protocol.statistics.variant_bounds import normalize_path

    match operands:
        case Column(path, data_type), Literal(str() as steps), Literal(str() as spelled):
            word, _, rest = spelled.strip().rstrip(")").partition("(")
            target = type_from_words(word.strip(), [n.strip() for n in rest.split(",") if rest])
            where = normalize_path(steps)
            if data_type == VARIANT and where is not None and target is not None:
                return Column((*path, where, str(target)), target)
    return None


def _mark_computed(result: Typed) -> Typed:
    """The result of a call. Spark treats it neither as a CHAR(n) column, even if it only names one
    (`CAST(c AS STRING)`), nor as a literal of the text.
    """
    match result:
        case Column():
            return replace(result, char_length=None)
        case Literal():
            return replace(result, is_written=False)
    return result


def _check_truth(operand: Typed) -> Typed:
    if isinstance(operand, Refused) or operand.data_type == BOOLEAN:
        return operand
    if operand.data_type == VOID and isinstance(operand, Literal):
        return Literal(None, BOOLEAN)
    return Refused(f"{sql_type_name(operand.data_type)} as a truth value", (operand,))


def _columns_among(names: tuple[Name, ...], schema: StructType) -> tuple[Typed, ...]:
    """The columns that a part may read; its names may also be functions or variables."""
    found = (schema.fields_along(name.parts) for name in names)
    return tuple(column_of(fields) for fields in found if fields)


def _resolve_column(parts: tuple[str, ...], schema: StructType) -> Typed:
    fields = schema.fields_along(parts)
    if len(fields) == len(parts):
        return column_of(fields)
    level = fields[-1].data_type if fields else schema
    if isinstance(level, StructType):
        raise _describe_unknown(parts, [field.name for field in fields], level)
    whole: Typed = replace(column_of(fields), char_length=None)
    return reduce(_resolve_field, parts[len(fields) :], whole)


def _resolve_field(base: Typed, name: str) -> Typed:
    """`base.name`, where the base is a computed value or a map."""
    match base.data_type:
        case StructType() as struct:
            found = struct.get(name)
            if found is None:
                raise _describe_unknown((name,), ["a computed value"], struct)
            position = Literal(struct.names.index(found.name) + 1, INTEGER)
            if holds_values(struct) and collation_of(found) is None:
                return Call(".", (base, position), found.data_type)
        case MapType(key_type) if key_type == STRING:
            return _resolve_call("[]", (base, Literal(name, STRING)))
    if isinstance(base, Refused):
        return replace(base, operands=(base,), meaning=None)
    # A field of an array of structs can be selected by name too.
    return Refused(f"the field {name} of {sql_type_name(types_of([base])[0])}", (base,))


def _describe_unknown(parts: tuple[str, ...], path: list[str], level: StructType) -> SchemaMismatch:
    name = ".".join(parts)
    what = f"fields of {'.'.join(path)}" if path else "columns"
    near = nearest_name(parts[-1], level.names)
    # In a merge the table and the new rows are structs, and `target.id` is a usual guess.
    nested = [column for column in level.names if level.fields_along((column, parts[-1]))[1:]]
    similar = [f"{column}.{parts[-1]}" for column in nested if len(parts) > 1]
    similar = similar or ([near] if near else [])
    hint = f"; did you mean {' or '.join(similar)}?" if similar else ""
    return SchemaMismatch(
        f"there is no column {name}; the {what} are {', '.join(level.names)}{hint}", column=name
    )


def typed_tree(sql: str, schema: StructType, zone: str) -> Typed:
    """Parse and analyse a Spark SQL expression of a statement in a time zone."""
    token = ZONE.set(zone)
    try:
        expression = _to_typed(_parse_or_refuse(sql), schema)
    except RecursionError:
        raise _too_deep() from None
    finally:
        ZONE.reset(token)
    if is_too_deep(expression):
        raise _too_deep()
    return expression


def _too_deep() -> InvalidArgument:
    return InvalidArgument(
        "the expression is nested too deeply: combine conditions with AND and OR, of which "
        "there may be any number, and shorten other chains of operators"
    )


def _parse_or_refuse(sql: str) -> Syntax:
    try:
        return parse_syntax(sql)
    except GrammarUnknown as unknown:
        return _parse_for_spark(sql, unknown)


def _parse_for_spark(sql: str, unknown: GrammarUnknown) -> Syntax:
    """The whole text as one opaque part, if a full Spark SQL parser accepts it."""
    names = columns_in(sql)
    if names is None:
        syntax_error(sql, unknown.position, unknown.problem)
    return Opaque(f"a construct outside its grammar ({unknown.problem})", names)


_PADDED = frozenset({"=", "<", "<=", ">", ">=", "<=>", "in"})


def _with_padded_literals(name: str, operands: tuple[Typed, ...]) -> tuple[Typed, ...]:
    """The operands of a call. As Spark does in comparisons of CHAR(n) columns, constants are padded
    with blanks to the length of the column: only a column itself is compared this way, not a field
    of a struct or a value computed from it.
    """
    columns = [
        operand
        for operand in (operands[:1] if name == "in" else operands)
        if isinstance(operand, Column) and operand.char_length is not None
    ]
    if name not in _PADDED or not columns:
        return operands
    lengths = {column.char_length for column in columns if column.char_length is not None}
    others = operands[1:] if name == "in" else [o for o in operands if o not in columns]
    if any(map(has_column, others)):
        return operands
    if len(lengths) > 1:
        raise Refusal("a comparison of CHAR(n) of different lengths")
    return tuple(_pad_literal(operand, *lengths) for operand in operands)


def _pad_literal(operand: Typed, length: int) -> Typed:
    if isinstance(operand, Column):
        return operand
    if not isinstance(operand, Literal):
        raise Refusal("a comparison of CHAR(n) with a computed text")
    if operand.data_type != STRING or not isinstance(operand.value, str):
        return operand
    if len(operand.value.rstrip(" ")) > length:
        raise Refusal(f"a comparison of CHAR({length}) with a longer text")
    # A longer constant ends in blanks; Spark pads the column to the same length.
    return replace(operand, value=operand.value.ljust(length)[:length])
