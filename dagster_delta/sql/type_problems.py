"""Operands that Spark SQL refuses for their types: rules that separate wrong expressions from those
that only Spark evaluates.

They hold in ANSI mode, Spark's default. A rule that is not certain reports no problem.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from dagster_delta.protocol.schema import ArrayType, DataType, MapType, PrimitiveType, StructType
from dagster_delta.sql.types import DATE, INTEGER, common_type, is_numeric, sql_type_name

_MOMENTS = ("date", "timestamp", "timestamp_ntz")
_NESTED = frozenset({"array", "map", "struct"})
_ATOMIC = frozenset({"number", "string", "boolean", "binary", "moment"})

_NUMBER = frozenset({"number", "string"})
_TEXT = _ATOMIC
_MOMENT = frozenset({"moment", "string"})
_TRUTH = frozenset({"boolean", "string"})
_ARRAY = frozenset({"array"})
_MAP = frozenset({"map"})

_COMPARED = frozenset(
    {"=", "<", "<=", ">", ">=", "<=>", "in", "between", "nullif", "equal_null"}
    | {"coalesce", "nvl", "ifnull", "greatest", "least"}
)
"""Operators and functions whose operands must have a common type."""


def _by_name(
    rules: Mapping[str, tuple[frozenset[str], ...]],
) -> dict[str, tuple[frozenset[str], ...]]:
    return {name: rule for names, rule in rules.items() for name in names.split()}


_OPERANDS = _by_name(
    {
        "not and or": (_TRUTH,) * 2,
        "* / % div mod pmod": (_NUMBER,) * 2,
        "negative positive abs ceil ceiling floor round sqrt sign signum": (_NUMBER,),
        "upper ucase lower lcase trim ltrim rtrim length len char_length character_length": (
            _TEXT,
        ),
        "substring substr left right repeat lpad rpad instr split_part translate replace": (_TEXT,),
        "like ilike rlike regexp_replace startswith endswith md5 sha sha1": (_TEXT,),
        "year quarter month day dayofmonth dayofyear dayofweek weekday weekofyear": (_MOMENT,),
        "last_day add_months date_add date_sub trunc date_format": (_MOMENT,),
        "datediff date_diff months_between": (_MOMENT,) * 2,
        "date_trunc extract date_part datepart": (frozenset({"string"}), _MOMENT),
        "size cardinality": (_ARRAY | _MAP,),
        "element_at try_element_at": (_ARRAY | _MAP,),
        "array_contains": (_ARRAY,),
        "map_keys map_values map_entries": (_MAP,),
        "if": (_TRUTH,),
    }
)
"""Allowed kinds of the first operands."""


def type_problem(name: str, types: Sequence[DataType | None]) -> str | None:
    """Why Spark refuses an operator or a function of these operands; None if it may not.

    `types`: types of the operands; None if only Spark knows.
    """
    for data_type, allowed in zip(types, _OPERANDS.get(name, ()), strict=False):
        if data_type is not None and _kind(data_type) not in (*allowed, ""):
            return f"{_spelled(name)} cannot be computed of {sql_type_name(data_type)}"
    if name in ("+", "-") and len(types) == 2:
        return _sum_problem(name, *types)
    if name == "[]" and len(types) == 2:
        return _subscript_problem(*types)
    if name == "case":
        return _case_problem(types)
    return (
        _mixed(_spelled(name), types[1:] if name == "if" else types)
        if (name in _COMPARED or name == "if")
        else None
    )


def cast_problem(source: DataType, target: DataType) -> str | None:
    """Why Spark refuses a cast between two types; None if it may not."""
    kinds = (_kind(source), _kind(target))
    if "" in kinds or kinds[0] == kinds[1] or ("string" in kinds and not _NESTED & {kinds[1]}):
        return None
    is_wrong = (
        bool(_NESTED & set(kinds))
        or "binary" in kinds
        or kinds == ("boolean", "moment")
        or kinds == ("moment", "boolean")
        or (kinds[0] == "number" and target != PrimitiveType("timestamp") and kinds[1] == "moment")
        or (kinds[1] == "number" and source != PrimitiveType("timestamp") and kinds[0] == "moment")
    )
    if not is_wrong:
        return None
    return f"{sql_type_name(source)} cannot be cast to {sql_type_name(target)}"


def field_problem(base: DataType | None, name: str) -> str | None:
    """Why Spark finds no field `name` in a value; None if it may."""
    if base is None or _kind(base) not in _ATOMIC:
        return None
    return f"a value of type {sql_type_name(base)} has no field {name}"


def _kind(data_type: DataType) -> str:
    """The kind of a type in Spark's rules; "" if its kind is not certain."""
    match data_type:
        case ArrayType():
            return "array"
        case MapType():
            return "map"
        case StructType():
            return "struct"
    if is_numeric(data_type):
        return "number"
    name = data_type.name if isinstance(data_type, PrimitiveType) else ""
    if name in _MOMENTS:
        return "moment"
    return name if name in _ATOMIC else ""


def _sum_problem(sign: str, first: DataType | None, second: DataType | None) -> str | None:
    if first is None or second is None:
        return None
    kinds = (_kind(first), _kind(second))
    is_wrong = bool(set(kinds) & (_NESTED | {"boolean", "binary"}))
    if "moment" in kinds and "number" in kinds:
        moment, number = (first, second) if kinds[0] == "moment" else (second, first)
        is_wrong = moment != DATE or common_type([number, INTEGER]) != INTEGER
    elif kinds == ("moment", "moment"):
        is_wrong = sign == "+"
    if not is_wrong:
        return None
    return f"there is no {sql_type_name(first)} {sign} {sql_type_name(second)}"


def _subscript_problem(base: DataType | None, index: DataType | None) -> str | None:
    if base is None or index is None:
        return None
    kind = _kind(base)
    if kind in _ATOMIC:
        return f"a value of type {sql_type_name(base)} has no elements"
    if kind == "array" and _kind(index) not in ("number", ""):
        return f"the position of an element is a number, not {sql_type_name(index)}"
    return None


def _case_problem(types: Sequence[DataType | None]) -> str | None:
    """Operands are condition, value, condition, value, …, and optionally the value of ELSE."""
    pairs = len(types) // 2
    for condition in types[: 2 * pairs : 2]:
        if condition is not None and _kind(condition) not in (*_TRUTH, ""):
            return f"a condition of CASE is of type {sql_type_name(condition)}"
    return _mixed("CASE", [*types[1 : 2 * pairs : 2], *types[2 * pairs :]])


def _mixed(name: str, types: Sequence[DataType | None]) -> str | None:
    """Why operands have no common type; None if they may have one."""
    known = dict.fromkeys(data_type for data_type in types if data_type is not None)
    for first, second in combinations(known, 2):
        kinds = {_kind(first), _kind(second)}
        if len(kinds) == 1 or "" in kinds or ("string" in kinds and not kinds & _NESTED):
            continue
        return (
            f"{name} brings {sql_type_name(first)} and {sql_type_name(second)} together, which "
            "have no type in common"
        )
    return None


def _spelled(name: str) -> str:
    if name in ("in", "and", "or", "not", "like", "ilike", "rlike", "between", "div"):
        return name.upper()
    return f"{name}()" if name.isidentifier() else name
