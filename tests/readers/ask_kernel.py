"""Delta Kernel for Java with its default engine, as connectors call it. It runs in the JVM that py4j
starts with the JARs of PySpark and of the kernel.
"""

from __future__ import annotations

import datetime as dt
import decimal
import glob
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
from asking import NotOffered, python_value, serve
from py4j.java_gateway import JavaGateway, JavaMember

_SPARK_JARS = glob.glob(str(Path(pyspark.__file__).parent / "jars" / "*.jar"))
GATEWAY = JavaGateway.launch_gateway(
    classpath=os.pathsep.join([*os.environ["ASK_JARS"].split(","), *_SPARK_JARS]),
    javaopts=["-XX:TieredStopAtLevel=1"],
    die_on_exit=True,
)
KERNEL = GATEWAY.jvm.io.delta.kernel
ENGINE = KERNEL.defaults.engine.DefaultEngine.create(
    GATEWAY.jvm.org.apache.hadoop.conf.Configuration()
)
NOTHING = GATEWAY.jvm.java.util.Optional.empty()
_EPOCH = dt.datetime(1970, 1, 1)

_WIDE = decimal.Context(prec=38)
_TYPES = {
    "BooleanType": pa.bool_(),
    "ByteType": pa.int8(),
    "ShortType": pa.int16(),
    "IntegerType": pa.int32(),
    "LongType": pa.int64(),
    "FloatType": pa.float32(),
    "DoubleType": pa.float64(),
    "StringType": pa.string(),
    "BinaryType": pa.binary(),
    "DateType": pa.date32(),
    "TimestampType": pa.timestamp("us", "UTC"),
    "TimestampNTZType": pa.timestamp("us"),
}
_GETTERS = {
    "DateType": "getInt",
    "IntegerType": "getInt",
    "TimestampType": "getLong",
    "TimestampNTZType": "getLong",
}


def answer(question: dict[str, Any]) -> pa.Table:
    if question["kind"] in {"append", "changes"}:
        raise NotOffered("it is asked for rows")
    snapshot = _open_snapshot(question)
    schema = snapshot.getSchema()
    builder = snapshot.getScanBuilder()
    if question["columns"]:
        read = KERNEL.types.StructType()
        for name in question["columns"]:
            read = read.add(schema.get(name))
        builder, schema = builder.withReadSchema(read), read
    condition = _predicate(question["filter"], schema) if question["filter"] else None
    if condition is not None:
        builder = builder.withFilter(condition)
    fields = [schema.at(n) for n in range(schema.length())]
    rows = [
        {field.getName(): value for field, value in zip(fields, values, strict=True)}
        for values in _read_rows(builder.build(), condition, fields)
    ]
    if question["kind"] == "count":
        return pa.table({"n": [len(rows)]})
    types = [(field.getName(), _arrow_type(field.getDataType())) for field in fields]
    return pa.Table.from_pylist(rows, schema=pa.schema(types))


def _open_snapshot(question: dict[str, Any]) -> Any:
    table = KERNEL.Table.forPath(ENGINE, question["uri"])
    if question["timestamp"]:
        asked = dt.datetime.fromisoformat(question["timestamp"])
        return table.getSnapshotAsOfTimestamp(ENGINE, int(asked.timestamp() * 1000))
    if question["version"] is not None:
        return table.getSnapshotAsOfVersion(ENGINE, question["version"])
    return table.getLatestSnapshot(ENGINE)


def _read_rows(scan: Any, condition: Any, fields: list[Any]) -> Iterator[list[Any]]:
    """The rows that the scan selects, and of those the ones that satisfy the condition."""
    state, files = scan.getScanState(ENGINE), KERNEL.internal.InternalScanFileUtils
    physical = KERNEL.internal.data.ScanStateRow.getPhysicalDataReadSchema(state)
    singleton = KERNEL.internal.util.Utils.singletonCloseableIterator
    scanned = _java_items(scan.getScanFiles(ENGINE))
    for file in (row for batch in scanned for row in _java_items(batch.getRows())):
        status = singleton(files.getAddFileStatus(file))
        read = ENGINE.getParquetHandler().readParquetFiles(status, physical, NOTHING)
        data = _to_batches(read)
        for batch in _java_items(KERNEL.Scan.transformPhysicalData(ENGINE, state, file, data)):
            rows, chosen = batch.getData(), batch.getSelectionVector()
            if condition is not None:
                handler = ENGINE.getExpressionHandler()
                evaluator = handler.getPredicateEvaluator(rows.getSchema(), condition)
                chosen = GATEWAY.jvm.java.util.Optional.of(evaluator.eval(rows, chosen))
            columns = [
                (rows.getColumnVector(n), field.getDataType()) for n, field in enumerate(fields)
            ]
            for row in range(rows.getSize()):
                if not chosen.isPresent() or _is_chosen(chosen.get(), row):
                    yield [_value(vector, row, data_type) for vector, data_type in columns]


def _is_chosen(chosen: Any, row: int) -> bool:
    return not chosen.isNullAt(row) and chosen.getBoolean(row)


def _java_items(iterator: Any) -> Iterator[Any]:
    try:
        while iterator.hasNext():
            # `next` of py4j hides what is raised.
            yield JavaMember("next", iterator, iterator._target_id, iterator._gateway_client)()
    finally:
        iterator.close()


def _to_batches(read: Any) -> Any:
    batches = GATEWAY.jvm.java.util.ArrayList()
    for result in _java_items(read):
        batches.add(result.getData())
    return KERNEL.internal.util.Utils.toCloseableIterator(batches.iterator())


def _kind(data_type: Any) -> str:
    return str(data_type.getClass().getSimpleName())


def _arrow_type(data_type: Any) -> pa.DataType:
    match kind := _kind(data_type):
        case "DecimalType":
            return pa.decimal128(data_type.getPrecision(), data_type.getScale())
        case "StructType":
            fields = (data_type.at(n) for n in range(data_type.length()))
            return pa.struct([(f.getName(), _arrow_type(f.getDataType())) for f in fields])
        case "ArrayType":
            return pa.list_(_arrow_type(data_type.getElementType()))
        case "MapType":
            key, value = data_type.getKeyType(), data_type.getValueType()
            return pa.map_(_arrow_type(key), _arrow_type(value))
    if kind not in _TYPES:
        raise NotOffered(f"{kind} has no Arrow type here")
    return _TYPES[kind]


def _value(vector: Any, row: int, data_type: Any) -> Any:
    """A value with the names of its type, which is that of the table: the vector has physical ones."""
    if vector.isNullAt(row):
        return None
    match kind := _kind(data_type):
        case "StructType":
            fields = [data_type.at(n) for n in range(data_type.length())]
            children = [vector.getChild(n) for n in range(len(fields))]
            return {
                field.getName(): _value(child, row, field.getDataType())
                for field, child in zip(fields, children, strict=True)
            }
        case "ArrayType":
            found = vector.getArray(row)
            return _values(found, found.getElements(), data_type.getElementType())
        case "MapType":
            found = vector.getMap(row)
            keys = _values(found, found.getKeys(), data_type.getKeyType())
            values = _values(found, found.getValues(), data_type.getValueType())
            return list(zip(keys, values, strict=True))
    getter = _GETTERS.get(kind, f"get{kind.removesuffix('Type')}")
    value = getattr(vector, getter)(row)
    return bytes(value) if kind == "BinaryType" else value


def _values(found: Any, vector: Any, data_type: Any) -> list[Any]:
    return [_value(vector, n, data_type) for n in range(found.getSize())]


def _predicate(literal: dict[str, Any], schema: Any) -> Any:
    predicate = KERNEL.expressions.Predicate
    names = GATEWAY.new_array(GATEWAY.jvm.java.lang.String, len(literal["column"]))
    for n, name in enumerate(literal["column"]):
        names[n] = name
    column = KERNEL.expressions.Column(names)
    if literal["op"] in {"IS NULL", "IS NOT NULL"}:
        return predicate(literal["op"].replace(" ", "_"), column)
    data_type = schema
    for name in literal["column"]:
        data_type = data_type.get(name).getDataType()
    if literal["op"].startswith("%"):
        raise NotOffered("no arithmetic")
    return predicate(literal["op"], column, _literal(python_value(literal), data_type))


def _literal(value: Any, data_type: Any) -> Any:
    """A constant of the type of the column, as engines pass it."""
    literals, kind = KERNEL.expressions.Literal, _kind(data_type)
    if kind == "DecimalType":
        scale = data_type.getScale()
        number = value.quantize(decimal.Decimal(1).scaleb(-scale), context=_WIDE)
        return literals.ofDecimal(number, data_type.getPrecision(), scale)
    makers: dict[str, Callable[[Any], Any]] = {
        "DateType": lambda day: literals.ofDate((day - _EPOCH.date()).days),
        "TimestampType": lambda at: literals.ofTimestamp(_microseconds(at.replace(tzinfo=None))),
        "TimestampNTZType": lambda at: literals.ofTimestampNtz(_microseconds(at)),
        "IntegerType": literals.ofInt,
        "BinaryType": lambda value: literals.ofBinary(bytearray(value)),
    }
    maker = makers.get(kind) or getattr(literals, f"of{kind.removesuffix('Type')}")
    return maker(value)


def _microseconds(at: dt.datetime) -> int:
    return (at - _EPOCH) // dt.timedelta(microseconds=1)


if __name__ == "__main__":
    serve(answer)
