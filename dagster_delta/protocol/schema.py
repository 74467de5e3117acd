"""The schema of a table as the log serializes it.

Spec: Schema Serialization Format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, TypeAlias, TypeVar

import msgspec
from msgspec.structs import force_setattr, replace

from dagster_delta.cached_property import cached_property
from dagster_delta.errors import InvalidArgument, InvalidTable, SchemaMismatch, UnsupportedFeature
from dagster_delta.protocol.wire_values import DECODING_ERRORS

PRIMITIVE_NAMES = frozenset(
    {
        "string",
        "long",
        "integer",
        "short",
        "byte",
        "float",
        "double",
        "boolean",
        "binary",
        "date",
        "timestamp",
        "timestamp_ntz",
        "variant",
        "void",
    }
)

# Read as what they are without their last three digits; tables with them are not written.
_TRUNCATED_TYPES = {"timestamp_nanos": "timestamp", "timestamp_nanos_ntz": "timestamp_ntz"}
NANOSECONDS_KEY = "__DAGSTER_DELTA_NANOSECONDS"
"""Metadata of a column that is stored in nanoseconds, in a schema that was read."""
_TRUNCATED_TEXT = re.compile(r'"(type|elementType|keyType|valueType)"\s*:\s*"timestamp_nanos')

_YEAR_TO_MONTH = r"year to month|year|month"
_DAY_TO_SECOND = (
    r"day( to (hour|minute|second))?|hour( to (minute|second))?|minute( to second)?|second"
)
_INTERVAL = re.compile(rf"interval ((?P<months>{_YEAR_TO_MONTH})|{_DAY_TO_SECOND})")
MAX_DECIMAL_PRECISION = 38
MAX_NESTING = 98
"""How deep data files may be nested, see `nesting_of`; Arrow's limit."""
_MAX_READ_NESTING = 200
"""How deep the types of a table may be nested. More levels would exhaust the stack."""

# Real tables have `geometry(OGC:CRS84)`, `geography(OGC:CRS84, SPHERICAL)` and `geometry(SRID:0)`.
_GEOSPATIAL = re.compile(r"(geometry|geography)\(([^(),]+)(,[^(),]+)?\)")

# Longer numbers overflow a C integer, and Python refuses to parse very long ones.
_DECIMAL = re.compile(r"decimal\(\s*([0-9]{1,9})\s*,\s*(-?[0-9]{1,9})\s*\)")

_T = TypeVar("_T")


def has_nanoseconds(schema_string: str) -> bool:
    """Whether the JSON of a schema has timestamps in nanoseconds, which are read as the types in
    microseconds.
    """
    return "timestamp_nanos" in schema_string and bool(_TRUNCATED_TEXT.search(schema_string))


def fold_name(name: str) -> str:
    """The form in which names of columns are compared: equal ones are one column.

    delta-spark compares them in lower case (`toLowerCase(Locale.ROOT)`). Full case folding would
    make one column of `Maße` and `Masse`, and of names with a long s or the other small sigma.
    """
    return name.lower()


class PrimitiveType(msgspec.Struct, frozen=True):
    """A type without parts: `variant` and `void` included, geospatial types with their parameters,
    and intervals with their units.
    """

    name: str

    @property
    def coordinates(self) -> str | None:
        """Coordinate reference system of a geospatial type, None for any other type."""
        match = _GEOSPATIAL.fullmatch(self.name)
        return match and match[2].strip()

    @property
    def interval_unit(self) -> Literal["month", "microsecond"] | None:
        """What values of an interval type count, None for any other type."""
        match = _INTERVAL.fullmatch(self.name)
        return match and ("month" if match["months"] else "microsecond")

    @property
    def is_read_only(self) -> bool:
        """Whether columns of the type are read as they are, and neither compared nor written."""
        return self.coordinates is not None or self.interval_unit is not None

    def __str__(self) -> str:
        return self.name


class DecimalType(msgspec.Struct, frozen=True):
    """`decimal(precision,scale)`; precision 1 to 38, scale 0 to precision."""

    precision: int
    scale: int

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})"


class ArrayType(msgspec.Struct, frozen=True):
    """A list of one element type."""

    element_type: DataType
    contains_null: bool = True

    def __str__(self) -> str:
        return f"array<{self.element_type}>"


class MapType(msgspec.Struct, frozen=True):
    """A map; keys are never null."""

    key_type: DataType
    value_type: DataType
    value_contains_null: bool = True

    def __str__(self) -> str:
        return f"map<{self.key_type},{self.value_type}>"


class StructField(msgspec.Struct, frozen=True):
    """A named field of a struct with its metadata (comments, mapping, constraints, …)."""

    name: str
    data_type: DataType
    nullable: bool = True
    metadata: Mapping[str, object] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        force_setattr(self, "metadata", MappingProxyType(dict(self.metadata)))

    def __hash__(self) -> int:
        return hash((self.name, self.data_type, self.nullable))

    # A mapping proxy cannot be pickled, and schemas are sent to Spark executors.
    def __reduce__(self) -> tuple[object, ...]:
        return StructField, (self.name, self.data_type, self.nullable, dict(self.metadata))

    def without(self, *keys: str) -> StructField:
        """The field without some of its metadata."""
        kept = {key: value for key, value in self.metadata.items() if key not in keys}
        return StructField(self.name, self.data_type, self.nullable, kept)

    @property
    def comment(self) -> str | None:
        """The column comment, or None."""
        value = self.metadata.get("comment")
        return value if isinstance(value, str) else None


class StructType(msgspec.Struct, frozen=True, dict=True):
    """An ordered list of fields: a nested struct, or a whole table."""

    fields: tuple[StructField, ...]

    def __reduce__(self) -> tuple[type[StructType], tuple[tuple[StructField, ...]]]:
        # Without the indexes by name, which are rebuilt on first use.
        return StructType, (self.fields,)

    @cached_property
    def _by_name(self) -> Mapping[str, StructField]:
        return {field.name: field for field in reversed(self.fields)}

    @cached_property
    def _by_folded_name(self) -> Mapping[str, StructField]:
        return {fold_name(field.name): field for field in reversed(self.fields)}

    @property
    def names(self) -> tuple[str, ...]:
        """Field names in order."""
        return tuple(field.name for field in self.fields)

    def __iter__(self) -> Iterator[StructField]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def __str__(self) -> str:
        return f"struct<{','.join(f'{field.name}:{field.data_type}' for field in self.fields)}>"

    def get(self, name: str) -> StructField | None:
        """The field of that name, matched as Delta matches names (exact first, then
        case-insensitively), or None.
        """
        found = self._by_name.get(name)
        return self._by_folded_name.get(fold_name(name)) if found is None else found

    def field(self, name: str) -> StructField:
        """The field of that name."""
        found = self.get(name)
        if found is None:
            raise SchemaMismatch(
                f"there is no column {name!r}; the columns are {', '.join(self.names)}", column=name
            )
        return found

    def fields_along(self, path: Sequence[str]) -> tuple[StructField, ...]:
        """The fields that a path leads through, the outermost first; fewer than its names if one of
        them is unknown, or follows a column that is not a struct.
        """
        fields: list[StructField] = []
        inside: DataType = self
        for name in path:
            field = inside.get(name) if isinstance(inside, StructType) else None
            if field is None:
                break
            fields.append(field)
            inside = field.data_type
        return tuple(fields)

    @classmethod
    def from_json(cls, text: str) -> StructType:
        """Parse a `schemaString`."""
        return _parse_schema(text)

    def to_json(self) -> str:
        """The `schemaString` of this schema."""
        try:
            return msgspec.json.encode(data_type_to_json(self)).decode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(
                "the schema holds half of a surrogate pair, which is not a character: take it out "
                "of the name, comment or default that was given"
            ) from error


DataType: TypeAlias = PrimitiveType | DecimalType | ArrayType | MapType | StructType


@lru_cache(maxsize=256)
def _parse_schema(text: str) -> StructType:
    try:
        parsed = data_type_from_json(msgspec.json.decode(text))
    except DECODING_ERRORS as error:
        raise _describe_damage(str(error)) from error
    if not isinstance(parsed, StructType):
        raise InvalidTable(
            f"the schemaString is of type {parsed}, and a table's schema is a struct"
        )
    return _mark_nanoseconds(parsed, text) if has_nanoseconds(text) else parsed


def _mark_nanoseconds(schema: StructType, text: str) -> StructType:
    """The schema with a mark in the metadata of each column that is stored in nanoseconds."""
    columns = msgspec.json.decode(text)["fields"]
    mark = {NANOSECONDS_KEY: True}
    return StructType(
        tuple(
            msgspec.structs.replace(field, metadata={**field.metadata, **mark})
            if has_nanoseconds(msgspec.json.encode(column).decode())
            else field
            for field, column in zip(schema, columns, strict=True)
        )
    )


def _describe_damage(reason: str) -> InvalidTable:
    return InvalidTable(
        f"the schemaString is not a schema ({reason}): the metaData action is damaged; restore the "
        "table from an older version or repair the commit"
    )


def data_type_from_json(value: object, *, nesting: int = 0) -> DataType:
    """The type that a decoded JSON value represents."""
    if isinstance(value, str):
        return _parse_primitive(value)
    if nesting > _MAX_READ_NESTING:
        raise UnsupportedFeature(
            f"the schema has a column that is nested more than {_MAX_READ_NESTING} types deep, "
            "which this library does not read; drop the column with the engine that added it"
        )
    node = _check_kind(value, dict, "a type")
    inside = nesting + 1
    match node.get("type"):
        case "struct":
            fields = _get_member(node, "fields", list)
            return StructType(tuple(_field_from_json(field, inside) for field in fields))
        case "array":
            element = data_type_from_json(node.get("elementType"), nesting=inside)
            return ArrayType(element, _get_member(node, "containsNull", bool))
        case "map":
            key_type = data_type_from_json(node.get("keyType"), nesting=inside)
            if key_type == PrimitiveType("void"):
                raise InvalidTable("the schema has a map whose keys have no type")
            return MapType(
                key_type,
                data_type_from_json(node.get("valueType"), nesting=inside),
                _get_member(node, "valueContainsNull", bool),
            )
        case unknown:
            raise _describe_undefined_type(unknown)


def _describe_undefined_type(spelled: object) -> InvalidTable:
    return InvalidTable(
        f"the schema holds the type {spelled!r}, which the protocol does not define"
    )


def _check_kind(value: object, kind: type[_T], what: str) -> _T:
    if not isinstance(value, kind):
        raise _describe_damage(f"{what} is {value!r}")
    return value


def _get_member(node: dict[str, object], key: str, kind: type[_T]) -> _T:
    return _check_kind(node.get(key), kind, key)


def _parse_primitive(name: str) -> DataType:
    name = _TRUNCATED_TYPES.get(name, name)
    if name in PRIMITIVE_NAMES or PrimitiveType(name).is_read_only:
        return PrimitiveType(name)
    if name == "decimal":
        return DecimalType(10, 0)
    if match := _DECIMAL.fullmatch(name):
        precision, scale = int(match[1]), int(match[2])
        if 0 <= scale <= precision <= MAX_DECIMAL_PRECISION and precision:
            return DecimalType(precision, scale)
        raise InvalidTable(
            f"the schema holds the type {name!r}, and decimals have 1 to {MAX_DECIMAL_PRECISION} "
            "digits, no more of them after the point, and no fewer than 0"
        )
    raise _describe_undefined_type(name)


def _field_from_json(value: object, nesting: int) -> StructField:
    node = _check_kind(value, dict, "a field")
    nullable, metadata = node.get("nullable", True), node.get("metadata") or {}
    name = _get_member(node, "name", str)
    try:
        data_type = data_type_from_json(node.get("type"), nesting=nesting)
    except (InvalidTable, UnsupportedFeature) as error:
        error.column = name if error.column is None else f"{name}.{error.column}"
        raise
    return StructField(
        name,
        data_type,
        _check_kind(nullable, bool, "nullable"),
        _check_kind(metadata, dict, "metadata"),
    )


def data_type_to_json(data_type: DataType) -> object:
    """The JSON value of a type, ready to encode."""
    match data_type:
        case StructType(fields):
            return {
                "type": "struct",
                "fields": [
                    {
                        "name": field.name,
                        "type": data_type_to_json(field.data_type),
                        "nullable": field.nullable,
                        "metadata": {
                            key: value
                            for key, value in field.metadata.items()
                            if key != NANOSECONDS_KEY
                        },
                    }
                    for field in fields
                ],
            }
        case ArrayType(element_type, contains_null):
            return {
                "type": "array",
                "elementType": data_type_to_json(element_type),
                "containsNull": contains_null,
            }
        case MapType(key_type, value_type, value_contains_null):
            return {
                "type": "map",
                "keyType": data_type_to_json(key_type),
                "valueType": data_type_to_json(value_type),
                "valueContainsNull": value_contains_null,
            }
        case _:
            return str(data_type)


def walk_fields(
    data_type: DataType, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], StructField]]:
    """Every struct field at any depth with its logical path, parents before children.

    Steps into arrays and maps are called `element`, `key` and `value`.
    """
    for inner in inner_fields(data_type):
        here = (*path, inner.name)
        if isinstance(data_type, StructType):
            yield here, inner
        yield from walk_fields(inner.data_type, here)


def inner_parts(data_type: DataType) -> tuple[tuple[str, DataType], ...]:
    """The types directly inside a type, each with the step to it in a path: the name of a field,
    `element`, `key` or `value`.
    """
    return tuple((field.name, field.data_type) for field in inner_fields(data_type))


def inner_types(data_type: DataType) -> tuple[DataType, ...]:
    """The types directly inside a type: those of its fields, its elements, its keys and values."""
    return tuple(field.data_type for field in inner_fields(data_type))


def inner_fields(data_type: DataType) -> tuple[StructField, ...]:
    """The fields of a struct; the elements of an array, and the keys and values of a map, as fields
    that have the names of their steps in a path.
    """
    match data_type:
        case StructType(fields):
            return fields
        case ArrayType(element_type, contains_null):
            return (StructField("element", element_type, contains_null),)
        case MapType(key_type, value_type, value_contains_null):
            return (
                StructField("key", key_type, nullable=False),
                StructField("value", value_type, value_contains_null),
            )
        case _:
            return ()


def is_same_kind(one: DataType, other: DataType) -> bool:
    """Whether both types are structs, both arrays, or both maps."""
    return type(one) is type(other) and isinstance(one, StructType | ArrayType | MapType)


FieldKey: TypeAlias = Callable[[StructField], object]


def paired_fields(
    one: DataType, other: DataType, key: FieldKey, other_key: FieldKey, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], StructField | None, StructField | None]]:
    """The fields of two types of one kind at every depth, with their path: each field of one with
    that of the other, None if it has none, and then those of its type; at the end of a struct the
    fields that only the other one has.

    Fields of structs correspond if their keys are equal. Elements, keys and values of collections
    are fields too, as in `inner_fields`.
    """
    fields, others = inner_fields(one), inner_fields(other)
    counterparts: Sequence[StructField | None] = others
    alone: list[StructField] = []
    if isinstance(one, StructType):
        keys, other_keys = list(map(key, fields)), list(map(other_key, others))
        by_key = dict(zip(reversed(other_keys), reversed(others), strict=True))
        counterparts = list(map(by_key.get, keys))
        known = set(keys)
        alone = [field for at, field in zip(other_keys, others, strict=True) if at not in known]
    for found, counterpart in zip(fields, counterparts, strict=True):
        here = (*path, found.name)
        yield here, found, counterpart
        if counterpart is not None:
            types = found.data_type, counterpart.data_type
            if is_same_kind(*types):
                yield from paired_fields(*types, key, other_key, here)
    for found in alone:
        yield (*path, found.name), None, found


def walk_types(data_type: DataType) -> Iterator[DataType]:
    """The type and every type inside it, at any depth."""
    yield data_type
    for inner in inner_types(data_type):
        yield from walk_types(inner)


def with_inner_types(data_type: DataType, types: Sequence[DataType]) -> DataType:
    """The type with other types directly inside it, in the order of `inner_types`."""
    match data_type:
        case StructType(fields):
            pairs = zip(fields, types, strict=True)
            return StructType(tuple(replace(field, data_type=inner) for field, inner in pairs))
        case ArrayType():
            (element_type,) = types
            return replace(data_type, element_type=element_type)
        case MapType():
            key_type, value_type = types
            return replace(data_type, key_type=key_type, value_type=value_type)
        case _:
            return data_type


def nesting_of(data_type: DataType) -> int:
    """How deep a column of the type is nested in Parquet: one level for a struct, two for an array
    or a map, 0 for a primitive type.
    """
    deepest, pending = 0, [(data_type, 0)]
    while pending:
        found, nesting = pending.pop()
        deepest = max(deepest, nesting)
        levels = 1 if isinstance(found, StructType) else 2
        pending += [(part, nesting + levels) for part in inner_types(found)]
    return deepest


def nullable_field(field: StructField, keys: Collection[str] | None = None) -> StructField:
    """The field with nulls allowed at every depth.

    The field and its nested fields keep the metadata of `keys`; all by default.
    """
    metadata = {key: value for key, value in field.metadata.items() if keys is None or key in keys}
    return StructField(field.name, as_nullable(field.data_type, keys), metadata=metadata)


def as_nullable(data_type: DataType, keys: Collection[str] | None = None) -> DataType:
    """The type with nulls allowed at every depth."""
    match data_type:
        case StructType(fields):
            return StructType(tuple(nullable_field(field, keys) for field in fields))
        case ArrayType(element_type):
            return ArrayType(as_nullable(element_type, keys))
        case MapType(key_type, value_type):
            return MapType(as_nullable(key_type, keys), as_nullable(value_type, keys))
        case _:
            return data_type
