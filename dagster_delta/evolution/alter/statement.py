"""`ALTER TABLE` statements in the spellings of Spark, Delta, DuckDB, DuckLake, MySQL and TiDB.

    [ALTER TABLE [IF EXISTS] name] action [, action …] [;]

    ADD [COLUMN | COLUMNS] [IF NOT EXISTS] definition | (definition, …)
    ADD CONSTRAINT name CHECK (expression)
    DROP [COLUMN | COLUMNS] [IF EXISTS] path | (path, …)
    DROP {CONSTRAINT | CHECK} [IF EXISTS] name
    DROP FEATURE name [TRUNCATE HISTORY]
    RENAME [COLUMN] path TO name
    {ALTER | CHANGE} [COLUMN] path {[SET [DATA]] TYPE type [USING expression] | SET NOT NULL |
        DROP NOT NULL | SET DEFAULT expression | DROP DEFAULT | COMMENT text | FIRST | AFTER name}
    CHANGE [COLUMN] path name type [property …]
    MODIFY [COLUMN] path type [property …]
    SET TBLPROPERTIES (key = value, …)
    UNSET TBLPROPERTIES [IF EXISTS] (key, …)
    CLUSTER BY (path, …) | CLUSTER BY NONE
    COMMENT [=] text

A definition is `path type [property …]`, and a property is one of `NOT NULL`, `NULL`, `DEFAULT
expression`, `COMMENT text`, `FIRST` and `AFTER name`. MODIFY and CHANGE keep what they do not
mention. After a comma, text that does not start an action continues the previous action,
with its `IF EXISTS` or `IF NOT EXISTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TypeVar

from dagster_delta.evolution.alter.actions import (
    AddColumn,
    AddConstraint,
    ChangeType,
    ClusterBy,
    DropColumn,
    DropConstraint,
    DropDefault,
    DropFeature,
    DropNotNull,
    MoveColumn,
    RenameColumn,
    SchemaAction,
    SetComment,
    SetDefault,
    SetNotNull,
    SetProperties,
    SetTableComment,
    UnsetProperties,
)
from dagster_delta.evolution.alter.cursor import StatementCursor, resembles
from dagster_delta.evolution.alter.type_spelling import read_type
from dagster_delta.evolution.column_paths import ColumnPath
from dagster_delta.protocol.features.column_change import Position

_T = TypeVar("_T")
_Read = Callable[[StatementCursor], Iterator[SchemaAction]]

_DEFINITION_WORDS = ("NOT", "NULL", "DEFAULT", "COMMENT", "FIRST", "AFTER")
_VERBS = ("ADD", "DROP", "RENAME", "ALTER", "CHANGE", "MODIFY", "SET", "UNSET", "CLUSTER")

_ELSEWHERE = {
    "PRIMARY": "Delta tables have no primary keys",
    "UNIQUE": "Delta tables have no unique constraints",
    "FOREIGN": "Delta tables have no foreign keys",
    "INDEX": "Delta tables have no indexes; cluster the table by the column instead",
    "KEY": "Delta tables have no keys",
    "PARTITION": "partitions come and go with their rows",
    "PARTITIONS": "partitions come and go with their rows",
}


def parse_alter(sql: str) -> tuple[SchemaAction, ...]:
    """The actions of a statement, in order. `ALTER TABLE name` may be omitted; the name is ignored.
    A syntax error marks its position.
    """
    cursor = StatementCursor(sql, "an ALTER TABLE statement")
    if cursor.take_words("ALTER", "TABLE"):
        cursor.take_words("IF", "EXISTS")
        cursor.take_words("ONLY")
        cursor.path("the name of a table")
    actions: list[SchemaAction] = []
    read: _Read | None = None
    while True:
        # In `ADD COLUMNS a INT, b INT` the second definition does not start an action.
        if read is None or _starts_action(cursor):
            read = _verb(cursor)
        actions.extend(read(cursor))
        if not cursor.take_operator(","):
            break
    if not cursor.is_done:
        cursor.fail("expected a comma or the end of the statement")
    return tuple(actions)


def _starts_action(cursor: StatementCursor) -> bool:
    following = cursor.peek()
    if cursor.is_word("COMMENT"):
        return following.kind == "string" or following.is_operator("=")
    return cursor.is_word(*_VERBS) and following.kind in ("word", "quoted", "string")


def _verb(cursor: StatementCursor) -> _Read:
    """Take the words of an action; returns the parser of its object."""
    token = cursor.token
    readers: dict[str, Callable[[StatementCursor], _Read]] = {
        "ADD": _after_add,
        "DROP": _after_drop,
        "RENAME": _after_rename,
        "ALTER": lambda each: _after_column(each, _altered),
        "CHANGE": lambda each: _after_column(each, _changed),
        "MODIFY": lambda each: _after_column(each, _modified),
        "SET": _after_set,
        "UNSET": _after_unset,
        "CLUSTER": _after_cluster,
        "COMMENT": lambda _: _table_comment,
    }
    reader = readers.get(token.text.upper()) if token.kind == "word" else None
    if reader is None:
        cursor.fail(f"expected {', '.join(_VERBS)} or COMMENT")
    cursor.next()
    return reader(cursor)


def _after_column(cursor: StatementCursor, read: _Read) -> _Read:
    # ALTER TABEL t … would otherwise be an action on a column TABEL.
    if resembles(cursor.token, "TABLE"):
        cursor.take_optional_word("TABLE")
    else:
        cursor.take_optional_word("COLUMN")
    return read


# ADD


def _after_add(cursor: StatementCursor) -> _Read:
    if cursor.take_word("CONSTRAINT"):
        return _added_constraint
    if cursor.is_word("CHECK") and cursor.peek().is_operator("("):
        cursor.fail("a CHECK needs a name: write ADD CONSTRAINT name CHECK (…)")
    _refuse_elsewhere(cursor)
    cursor.take_optional_word("COLUMN", "COLUMNS")
    return partial(_added_columns, cursor.take_words("IF", "NOT", "EXISTS"))


def _refuse_elsewhere(cursor: StatementCursor) -> None:
    following = cursor.peek()
    reason = _ELSEWHERE.get(cursor.token.text.upper()) if cursor.token.kind == "word" else None
    if reason and (following.is_word("KEY", "INDEX") or following.is_operator("(")):
        cursor.fail(reason)


def _added_columns(every_one: bool, cursor: StatementCursor) -> Iterator[SchemaAction]:
    if_not_exists = cursor.take_words("IF", "NOT", "EXISTS") or every_one
    yield from _one_or_list(cursor, lambda each: _definition(each, if_not_exists))


def _definition(cursor: StatementCursor, if_not_exists: bool) -> Iterator[SchemaAction]:
    path = cursor.path("the name of the new column")
    data_type = read_type(cursor)
    given = _properties(cursor)
    yield AddColumn(
        path,
        data_type,
        nullable=given.nullable is not False,
        default=given.default,
        comment=given.comment,
        position=given.position,
        if_not_exists=if_not_exists,
    )


@dataclass(slots=True)
class _Properties:
    nullable: bool | None = None
    default: str | None = None
    comment: str | None = None
    position: Position | None = None


def _properties(cursor: StatementCursor) -> _Properties:
    found = _Properties()
    while True:
        token = cursor.token
        name: str
        value: bool | str | Position
        if cursor.take_words("NOT", "NULL"):
            name, value = "nullable", False
        elif cursor.take_word("NULL"):
            name, value = "nullable", True
        elif cursor.take_word("DEFAULT"):
            stops = (*_DEFINITION_WORDS, *_REFUSED_PROPERTIES)
            name, value = "default", "NULL" if cursor.take_word("NULL") else cursor.span(*stops)
        elif cursor.take_word("COMMENT"):
            name, value = "comment", cursor.string("the comment")
        elif cursor.is_word("FIRST", "AFTER"):
            name, value = "position", _position(cursor)
        elif cursor.is_word("GENERATED"):
            cursor.fail("a column can only be generated from the creation of its table on")
        else:
            _refuse_other_properties(cursor)
            return found
        if getattr(found, name) is not None:
            cursor.fail("the column has this twice", at=token)
        setattr(found, name, value)


def _refuse_other_properties(cursor: StatementCursor) -> None:
    """Refuse by name the properties that MySQL and TiDB allow and Delta tables do not have."""
    reason = _REFUSED_PROPERTIES.get(cursor.token.text.upper())
    if cursor.token.kind == "word" and reason is not None:
        cursor.fail(f"{cursor.token.text.upper()} cannot be set: {reason}")


_REFUSED_PROPERTIES = {
    "AUTO_INCREMENT": "only a new table can have a column that numbers its rows",
    "AUTO_RANDOM": "only a new table can have a column that numbers its rows",
    "SERIAL": "only a new table can have a column that numbers its rows",
    "PRIMARY": _ELSEWHERE["PRIMARY"],
    "UNIQUE": _ELSEWHERE["UNIQUE"],
    "KEY": _ELSEWHERE["KEY"],
    "REFERENCES": _ELSEWHERE["FOREIGN"],
    "ON": "Delta tables set no value when a row is updated",
    "CHARACTER": "text is always UTF-8",
    "CHARSET": "text is always UTF-8",
    "COLLATE": "collations are not written; compare upper(…) or lower(…)",
    "CHECK": "a check has a name here; add it by ADD CONSTRAINT name CHECK (…)",
    "CONSTRAINT": "add it by ADD CONSTRAINT name CHECK (…)",
    "COLUMN_FORMAT": "data files are Parquet",
    "STORAGE": "data files are Parquet",
    "AS": "a column can only be generated from the creation of its table on",
    "USING": "a definition takes no expression; write ALTER COLUMN … TYPE … USING …",
}


def _position(cursor: StatementCursor) -> Position:
    if cursor.take_word("FIRST"):
        return Position()
    cursor.expect("AFTER")
    path = cursor.path()
    return Position(path[-1])


def _added_constraint(cursor: StatementCursor) -> Iterator[SchemaAction]:
    name = cursor.name("the name of the constraint")
    _refuse_elsewhere(cursor)
    cursor.expect("CHECK")
    expression = cursor.parenthesised()
    if cursor.is_word("NOT") and cursor.peek().is_word("ENFORCED"):
        cursor.fail("constraints of Delta tables are always enforced")
    cursor.take_word("ENFORCED")
    yield AddConstraint(name, expression)


# DROP and RENAME


def _after_drop(cursor: StatementCursor) -> _Read:
    if cursor.take_word("FEATURE"):
        return _dropped_feature
    if cursor.take_word("CONSTRAINT", "CHECK"):
        return partial(_dropped_constraint, cursor.take_words("IF", "EXISTS"))
    if cursor.is_word("TABLE") and cursor.peek().kind in ("word", "quoted"):
        cursor.fail("a table is dropped by deleting its directory; this drops columns")
    _refuse_elsewhere(cursor)
    cursor.take_optional_word("COLUMN", "COLUMNS")
    return partial(_dropped_columns, cursor.take_words("IF", "EXISTS"))


def _dropped_columns(every_one: bool, cursor: StatementCursor) -> Iterator[SchemaAction]:
    if_exists = cursor.take_words("IF", "EXISTS") or every_one

    def read_one(each: StatementCursor) -> Iterator[SchemaAction]:
        yield DropColumn(each.path(), if_exists=if_exists)

    yield from _one_or_list(cursor, read_one)
    if cursor.is_word("CASCADE"):
        cursor.fail("what depends on a column is dropped by name, and before it")
    cursor.take_word("RESTRICT")


def _dropped_constraint(every_one: bool, cursor: StatementCursor) -> Iterator[SchemaAction]:
    if_exists = cursor.take_words("IF", "EXISTS") or every_one
    yield DropConstraint(cursor.name("the name of the constraint"), if_exists=if_exists)


def _dropped_feature(cursor: StatementCursor) -> Iterator[SchemaAction]:
    if cursor.token.kind == "string":
        name = cursor.string("the name of the feature")
    else:
        # Names of preview features contain a hyphen, and the name of one feature of this library a
        # dot.
        name = cursor.name("the name of the feature")
        while cursor.token.is_operator("-", "."):
            joint = cursor.token.text
            cursor.expect(joint)
            name += f"{joint}{cursor.name()}"
    yield DropFeature(name, truncate_history=cursor.take_words("TRUNCATE", "HISTORY"))


def _after_rename(cursor: StatementCursor) -> _Read:
    if cursor.is_word("TO", "AS") and cursor.peek().kind in ("word", "quoted", "string"):
        cursor.fail("a table is found by its location, and has no name to change")
    cursor.take_optional_word("COLUMN")
    return _renamed


def _renamed(cursor: StatementCursor) -> Iterator[SchemaAction]:
    path = cursor.path()
    cursor.expect("TO")
    yield RenameColumn(path, _name_beside(cursor, path, "the new name"))


def _name_beside(cursor: StatementCursor, path: ColumnPath, what: str) -> str:
    """Take a new name in the struct of a column, given alone or as a path."""
    token = cursor.token
    target = cursor.path(what)
    if len(target) > 1 and [each.casefold() for each in target[:-1]] != [
        each.casefold() for each in path[:-1]
    ]:
        cursor.fail("a column stays in its struct: the new name is a single one", at=token)
    return target[-1]


# ALTER, CHANGE, MODIFY


def _altered(cursor: StatementCursor) -> Iterator[SchemaAction]:
    yield _alteration(cursor, cursor.path())


def _alteration(cursor: StatementCursor, path: ColumnPath) -> SchemaAction:
    if cursor.take_word("SET"):
        if cursor.take_word("NOT"):
            cursor.expect("NULL")
            return SetNotNull(path)
        if cursor.take_word("DEFAULT"):
            return SetDefault(path, cursor.span())
        if cursor.take_words("DATA", "TYPE") or cursor.take_word("TYPE"):
            return _changed_type(cursor, path)
        return cursor.fail("expected TYPE, DEFAULT or NOT NULL")
    if cursor.take_word("DROP"):
        if cursor.take_words("NOT", "NULL"):
            return DropNotNull(path)
        cursor.expect("DEFAULT")
        return DropDefault(path)
    if cursor.take_word("TYPE"):
        return _changed_type(cursor, path)
    if cursor.take_word("COMMENT"):
        return SetComment(path, cursor.string("the comment"))
    if cursor.is_word("FIRST", "AFTER"):
        return MoveColumn(path, _position(cursor))
    return cursor.fail("expected TYPE, SET, DROP, COMMENT, FIRST or AFTER")


def _changed_type(cursor: StatementCursor, path: ColumnPath) -> ChangeType:
    data_type = read_type(cursor)
    return ChangeType(path, data_type, cursor.span() if cursor.take_word("USING") else None)


def _changed(cursor: StatementCursor) -> Iterator[SchemaAction]:
    _refuse_if_exists(cursor)
    path = cursor.path()
    if cursor.is_word("TYPE", "SET", "DROP", "COMMENT", "FIRST", "AFTER"):
        yield _alteration(cursor, path)
        return
    new_name = _name_beside(cursor, path, "the name of the column after the change")
    yield from _redefined(cursor, path)
    if new_name != path[-1]:
        yield RenameColumn(path, new_name)


def _modified(cursor: StatementCursor) -> Iterator[SchemaAction]:
    _refuse_if_exists(cursor)
    yield from _redefined(cursor, cursor.path())


def _refuse_if_exists(cursor: StatementCursor) -> None:
    if cursor.is_word("IF") and cursor.peek().is_word("EXISTS"):
        cursor.fail("a column that is changed has to be there: leave IF EXISTS out")


def _redefined(cursor: StatementCursor, path: ColumnPath) -> Iterator[SchemaAction]:
    yield ChangeType(path, read_type(cursor))
    given = _properties(cursor)
    if given.nullable is not None:
        yield DropNotNull(path) if given.nullable else SetNotNull(path)
    if given.default is not None:
        yield SetDefault(path, given.default)
    if given.comment is not None:
        yield SetComment(path, given.comment)
    if given.position is not None:
        yield MoveColumn(path, given.position)


# The table as a whole


def _after_set(cursor: StatementCursor) -> _Read:
    if cursor.is_word("PARTITIONED"):
        cursor.fail("a Delta table is partitioned when it is created, or by an overwrite")
    cursor.expect("TBLPROPERTIES")
    return _set_properties


def _set_properties(cursor: StatementCursor) -> Iterator[SchemaAction]:
    yield SetProperties(dict(_listed(cursor, _property)))


def _property(cursor: StatementCursor) -> tuple[str, object]:
    key = _property_key(cursor)
    cursor.take_operator("=", "==")
    return key, _property_value(cursor)


def _after_unset(cursor: StatementCursor) -> _Read:
    cursor.expect("TBLPROPERTIES")
    return _unset_properties


def _unset_properties(cursor: StatementCursor) -> Iterator[SchemaAction]:
    if_exists = cursor.take_words("IF", "EXISTS")
    yield UnsetProperties(tuple(_listed(cursor, _property_key)), if_exists=if_exists)


def _property_key(cursor: StatementCursor) -> str:
    if cursor.token.kind == "string":
        return cursor.string("the name of a property")
    return ".".join(cursor.path("the name of a property"))


def _property_value(cursor: StatementCursor) -> str:
    token = cursor.token
    if token.kind in ("string", "number") or token.is_word("TRUE", "FALSE"):
        text = cursor.next().text
        return text if token.kind == "string" else text.lower()
    return cursor.fail("expected a text in quotes, a number, TRUE or FALSE for the property")


def _after_cluster(cursor: StatementCursor) -> _Read:
    cursor.expect("BY")
    return _clustered


def _clustered(cursor: StatementCursor) -> Iterator[SchemaAction]:
    is_none = cursor.take_word("NONE")
    yield ClusterBy(() if is_none else tuple(_listed(cursor, StatementCursor.path)))


def _table_comment(cursor: StatementCursor) -> Iterator[SchemaAction]:
    cursor.take_operator("=")
    yield SetTableComment(cursor.string("the comment") or None)


def _listed(cursor: StatementCursor, read: Callable[[StatementCursor], _T]) -> list[_T]:
    """What is read between parentheses, separated by commas."""
    cursor.expect("(")
    found = [read(cursor)]
    while cursor.take_operator(","):
        found.append(read(cursor))
    cursor.expect(")")
    return found


def _one_or_list(cursor: StatementCursor, read: _Read) -> Iterator[SchemaAction]:
    if not cursor.token.is_operator("("):
        return read(cursor)
    return chain.from_iterable(_listed(cursor, lambda each: tuple(read(each))))
