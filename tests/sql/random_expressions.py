"""Random expressions of Spark SQL over the columns of `test_sql_against_spark`."""

from __future__ import annotations

import random

_COLUMNS = {
    "byte": ["b"], "short": ["sh"], "int": ["i", "st.a"], "long": ["l"], "float": ["f"], "double": ["d", "x"],
    "dec": ["dec", "small", "wide"], "str": ["s", "u", "digits", "st.`B c`"], "bin": ["bin"], "bool": ["flag", "other"],
    "date": ["day"], "ts": ["t"], "ntz": ["n"],
}  # fmt: skip
_CONSTANTS = {
    "byte": ["1Y", "0Y", "-128Y"], "short": ["1S", "300S"], "int": ["0", "1", "-1", "70000", "2147483647"],
    "long": ["5L", "0L", "9007199254740993"], "float": ["1.1F", "-0.0F", "float('NaN')"],
    "double": ["-0.0D", "1.1D", "2.5D", "1e10", "double('NaN')", "double('-inf')"], "dec": ["1.5", "2.25", "0.00", "99.999", "1BD"],
    "str": ["'abc'", "''", "'5'", "'a_b%c'", "'é€𝄞z'", "'k'"], "bin": ["X''", "X'FF'"], "bool": ["true", "false", "NULL"],
    "date": ["DATE '2020-02-29'", "DATE '1970-01-01'"], "ts": ["TIMESTAMP '1970-01-01 00:00:00Z'"], "ntz": ["TIMESTAMP_NTZ '1970-01-01 00:00'"],
}  # fmt: skip
_NUMBERS = ("byte", "short", "int", "long", "float", "double", "dec")
_PATTERNS = ("'a%'", "'%c'", "'%b%'", "'abc'", "'a_c'", "'%'", "''", "'a\\\\_b%'", "NULL", "'%€%'")

# What stands in braces is an expression of that type; `same` is one of the type that was drawn.
_TEMPLATES = {
    "bool": [
        "({any} {operator} {same})", "({number} {operator} {number})", "({bool} AND {bool})", "({bool} OR {bool})", "(NOT {bool})", "({any} IS NULL)", "({any} IS NOT NULL)",
        "({bool} IS NOT TRUE)", "({bool} IS FALSE)", "({any} IN ({same}, {same}, NULL))", "({any} NOT IN ({same}, {same}))", "({any} NOT BETWEEN {same} AND {same})",
        "({str} LIKE {pattern})", "({str} NOT LIKE {pattern})", "({str} LIKE ANY ({pattern}, {pattern}))", "({str} NOT LIKE ANY ({pattern}, {pattern}))", "({str} NOT LIKE ALL ({pattern}, {pattern}))",
        "array_contains(arr, {int})", "array_contains(arr, {dec})", "array_contains(doubles, {double})", "array_contains(words, {str})", "isnan({double})", "contains({str}, {str})",
        "startswith({str}, {str})", "({str} IS DISTINCT FROM {str})", "cast({int} as boolean)",
    ],
    "byte": ["({byte} % 7Y)", "cast({bool} as tinyint)"],
    "short": ["({short} % 7S)", "cast({byte} as smallint)"],
    "int": [
        "({int} % 7)", "abs(({int} % 5))", "size(arr)", "cardinality(m)", "m[{str}]", "m.k", "deep.m[{str}]", "length({str})",
        "year({date})", "month({ts})", "dayofweek({ntz})", "datediff({date}, {date})", "cast({short} as int)",
    ],
    "long": ["({int} * 2L)", "({long} div 7)", "cast({dec} as bigint)", "cast({int} as bigint)"],
    "float": ["({float} * {float})", "(-{float})", "cast({dec} as float)", "cast(forms as float)"],
    "double": ["({double} + {number})", "({double} * {double})", "({int} / 7)", "cast({dec} as double)", "cast(forms as double)"],
    "dec": ["({dec} - {int})", "({byte} * {byte} + 1.5)", "abs({dec})", "({dec} % 1.5)", "cast({int} as decimal(20,3))", "floor({dec})", "cast(digits as decimal(10,2))"],
    "str": [
        "concat({str}, {dec})", "({str} || {str})", "substring({str}, 2, 2)", "trim({str})", "cast({any} as string)", "replace({str}, 'b', 'x')", "right({str}, 2)",
        "by_double[{double}]",
    ],
    "bin": ["cast({str} as binary)"],
    "date": ["cast({ts} as date)", "trunc({date}, 'month')"],
    "ts": ["date_trunc('hour', {ts})", "cast({date} as timestamp)", "at_key[{str}]"],
    "ntz": ["cast({ts} as timestamp_ntz)"],
}  # fmt: skip
_EVERYWHERE = (
    "CASE WHEN {bool} THEN {same} ELSE {same} END", "if({bool}, {same}, NULL)", "coalesce({same}, {same})", "nullif({same}, {same})",
)  # fmt: skip


def random_expressions(count: int, seed: int) -> list[str]:
    """Expressions of any type, two thirds of them conditions, up to two levels deep."""
    chosen = random.Random(seed)
    kinds = list(_COLUMNS)
    return [
        _expression(chosen, "bool" if index % 3 else chosen.choice(kinds), chosen.choice((1, 2)))
        for index in range(count)
    ]


def _expression(chosen: random.Random, kind: str, depth: int) -> str:
    if depth == 0 or chosen.random() < 0.15:
        return chosen.choice(_COLUMNS[kind] if chosen.random() < 0.7 else _CONSTANTS[kind])
    same = kind
    template = chosen.choice((*_TEMPLATES[kind], *_EVERYWHERE))
    if "{any}" in template:
        same = chosen.choice(list(_COLUMNS))
    text, rest = "", template
    while rest:
        before, _, rest = rest.partition("{")
        text += before
        name, _, rest = rest.partition("}") if rest else ("", "", "")
        if name == "operator":
            text += chosen.choice(("=", "<", ">=", "<>", "<=>"))
        elif name == "pattern":
            text += chosen.choice(_PATTERNS)
        elif name:
            wanted = same if name in ("any", "same") else name
            wanted = chosen.choice(_NUMBERS) if wanted == "number" else wanted
            text += _expression(chosen, wanted, depth - 1)
    return text
