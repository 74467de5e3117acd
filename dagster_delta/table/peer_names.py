"""Names of the `deltalake` package and delta-spark that differ here: only for errors, so that code
that moves over learns what to write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import NoReturn, ParamSpec, TypeVar

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_GUIDE = "see docs/migration.md"

_OURS = {
    "cleanup_metadata": "clean_log()",
    "count": "snapshot().num_records",
    "create_checkpoint": "checkpoint()",
    "create_write_transaction": "transaction()",
    "detail": "snapshot(), with its schema, metadata and protocol",
    "file_uris": 'snapshot().files()["path"]',
    "files": "snapshot().files()",
    "generate": "generate_symlink_manifests()",
    "get_add_actions": "snapshot().files()",
    "is_deltatable": "DeltaTable.is_delta_table(uri)",
    "load_as_version": "snapshot(version=…) or snapshot(timestamp=…)",
    "load_cdf": "changes(starting_version=…)",
    "load_version": "snapshot(version=…)",
    "load_with_datetime": "snapshot(timestamp=…)",
    "partitions": 'snapshot().files()["partition_values"]',
    "restoreToTimestamp": "restore(timestamp=…)",
    "restoreToVersion": "restore(version=…)",
    "scan": "snapshot().scan()",
    "table_config": "metadata().configuration",
    "table_uri": "uri",
    "toDF": "snapshot().scan().to_spark(spark)",
    "to_arrow": "snapshot().scan().to_arrow()",
    "to_pandas": "snapshot().scan().to_pandas()",
    "to_polars": "snapshot().scan().to_polars()",
    "to_pyarrow_dataset": "snapshot().scan().to_batches()",
    "to_pyarrow_table": "snapshot().scan().to_arrow()",
    "transaction_version": "snapshot().transaction_version(app_id)",
    "update_incremental": "refresh()",
    "write": "append() or overwrite()",
}
"""Attributes of their table handles, and what to write instead."""

_OUR_KEYWORDS = {
    "commit_properties": "commit_info",
    "post_commithook_properties": "nothing: checkpoints and clean-ups follow the table properties",
    "writer_properties": "the table property delta.parquet.compression.codec",
}
"""What to write instead of keywords that many calls of `deltalake` have."""


def missing_attribute(name: str) -> str:
    """The message for an attribute that a `DeltaTable` does not have."""
    message = f"'DeltaTable' object has no attribute {name!r}"
    ours = _OURS.get(name)
    return message if ours is None else f"{message}: write {ours}; {_GUIDE}"


class MissingAttribute:
    """A name of the `deltalake` package that is called on the class, `DeltaTable.is_deltatable`."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise AttributeError(missing_attribute(self._name), name=self._name, obj=owner)


def renamed(
    keywords: Mapping[str, str], calls: Mapping[str, str] | None = None
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
    """A decorator: a call with keywords of the `deltalake` package raises a TypeError that names
    ours.
    """

    def decorate(method: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
        @wraps(method)
        def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
            for name in kwargs:
                ours = keywords.get(name) or _OUR_KEYWORDS.get(name)
                if ours is not None:
                    raise TypeError(
                        f"{_called(method)}() has no parameter {name!r}: write {ours}; {_GUIDE}"
                    )
            return method(*args, **kwargs)

        for name, ours in (calls or {}).items():
            setattr(call, name, _refusing(f"{method.__name__}.{name}() is {ours} here"))
        return call

    return decorate


def _called(method: Callable[..., object]) -> str:
    return "DeltaTable" if method.__name__ == "__init__" else method.__name__


def _refusing(message: str) -> Callable[..., NoReturn]:
    def refuse(*_args: object, **_kwargs: object) -> NoReturn:
        raise TypeError(f"{message}; {_GUIDE}")

    return refuse
