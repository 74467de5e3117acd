"""The functions of the package that a first write, scan and merge call, each counted once.

python -m benchmarks.walks
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import dagster as dg
import pyarrow as pa

import dagster_delta
from dagster_delta import DeltaIOManager, DeltaTable

_PACKAGE = str(Path(dagster_delta.__file__).parent)
_ROWS = pa.table({"id": range(10), "city": ["Oslo"] * 10})


def _count(call: Callable[[], object]) -> tuple[int, int]:
    """The numbers of functions and of files."""
    seen: set[tuple[str, int]] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        is_function = not code.co_name.startswith("<")
        if event == "call" and is_function and code.co_filename.startswith(_PACKAGE):
            seen.add((code.co_filename, code.co_firstlineno))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return len(seen), len({file for file, _ in seen})


def main() -> None:
    """Print a line for each walk."""
    with tempfile.TemporaryDirectory() as root:
        manager = DeltaIOManager(root_uri=root)

        def store() -> None:
            context = dg.build_output_context(asset_key=dg.AssetKey(["rows"]), resources={})
            manager.handle_output(context, _ROWS)

        store()
        uri = f"{root}/public/rows"
        table = DeltaTable(uri)
        merge = table.merge(_ROWS.slice(0, 3), "t.id = s.id", source_alias="s", target_alias="t")
        walks: dict[str, Callable[[], object]] = {
            "an asset of ten rows": store,
            "a filtered scan": lambda: DeltaTable(uri).snapshot().scan(where="id = 3").to_arrow(),
            "a merge": lambda: merge.when_matched_update_all().execute(),
        }
        for name, call in walks.items():
            functions, files = _count(call)
            print(f"{name}: {functions} functions in {files} files")


if __name__ == "__main__":
    main()
