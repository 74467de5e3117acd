"""The functions of `pyarrow.compute`, without its module.

When it is imported, `pyarrow.compute` makes a documented wrapper for each of 300 functions, which
takes a tenth of the first operation of a process. Here a function gets its wrapper when it is used.
Methods such as `Array.cast` and `Table.filter` import that module; `cast` and `filter` here do not.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyarrow import _compute

_OTHER_ARGUMENTS = ("index", "random")
"""Functions of Arrow that `pyarrow.compute` calls in another way than the others."""


def cast(
    values: Any,  # noqa: ANN401  as arrays and scalars have no common type
    target_type: pa.DataType | None = None,
    *,
    safe: bool = True,
    options: Any = None,  # noqa: ANN401  as the options of Arrow have no types
) -> Any:  # noqa: ANN401  as `values`
    """Values as another type, like `pyarrow.compute.cast`."""
    if options is None:
        made = _compute.CastOptions.safe if safe else _compute.CastOptions.unsafe
        options = made(target_type)
    return _compute.call_function("cast", [values], options)


def fill_null(values: Any, fill_value: object) -> Any:  # noqa: ANN401  as `cast`
    """Values with another in place of nulls, like `pyarrow.compute.fill_null`."""
    if not isinstance(fill_value, pa.Array | pa.ChunkedArray | pa.Scalar):
        fill_value = pa.scalar(fill_value, type=values.type)
    elif fill_value.type != values.type:
        fill_value = pa.scalar(fill_value.as_py(), type=values.type)
    return _compute.call_function("coalesce", [values, fill_value])


def __getattr__(name: str) -> Any:  # noqa: ANN401  as the module of Arrow has no types
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_compute, name, None) or _function(name)
    globals()[name] = value
    return value


def _function(name: str) -> Any:  # noqa: ANN401  as `__getattr__`
    """A function, as `pyarrow.compute` calls it: with options by position or by name."""
    try:
        # `and_` and `or_` end so because they would be keywords.
        function = _compute.get_function(name.rstrip("_"))
        options_name = function._doc.options_class  # noqa: SLF001  as it has no public name
    except (AttributeError, KeyError):
        function = None
    if function is None or name in _OTHER_ARGUMENTS:
        import pyarrow.compute

        return getattr(pyarrow.compute, name)
    arity = None if function.arity is Ellipsis else function.arity
    options_type = getattr(_compute, options_name) if options_name else None

    def call(*values: Any, options: Any = None, memory_pool: Any = None, **named: Any) -> Any:  # noqa: ANN401
        if options_type is None:
            return function.call(values, options, memory_pool, **named)
        positional = () if arity is None else values[arity:]
        if positional or named:
            options = options_type(*positional, **named)
        return function.call(values[:arity], options, memory_pool)

    return call
