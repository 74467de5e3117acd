"""The names of `pyarrow.compute`, which is loaded when the first of its functions is used.

When it is imported, `pyarrow.compute` makes a documented wrapper for each of 300 functions, which
takes a tenth of the first append of a process. `call_function` and the options come without it.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:  # noqa: ANN401  as the module of Arrow has no types
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pyarrow import _compute

    value = getattr(_compute, name, None)
    if value is None:
        import pyarrow.compute

        value = getattr(pyarrow.compute, name)
    globals()[name] = value
    return value
