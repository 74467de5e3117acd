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
from itertools import chain
from typing import Any, TypeVar

import msgspec

from dagster_delta.evolution import actions
from dagster_delta.evolution.actions import SchemaAction
from dagster_delta.evolution.column_paths import ColumnPath
from dagster_delta.evolution.cursor import StatementCursor
from dagster_delta.evolution.type_spelling import read_type
from dagster_delta.protocol.features.column_change import Position
from dagster_delta.protocol.schema import fold_name

_T = TypeVar("_T")
_Read = Callable[[StatementCursor], Iterator[SchemaAction]]


def parse_alter(sql: str) -> tuple[SchemaAction, ...]:
    """The actions of a statement, in order. `ALTER TABLE name` may be omitted; the name is ignored.
    A syntax error marks its position.
    """
    cursor = StatementCursor(sql, "an ALTER TABLE statement")
    if cursor.take_words("ALTER", "TABLE"):
        cursor.take_words("IF", "EXISTS")
        cursor.take_words("ONLY")
        cursor.path("the name of a table")
    parsed: list[SchemaAction] = []
    form: _Form | None = None
    guards_all = False
    while True:
        # In `ADD COLUMNS a INT, b INT` the second definition does not start an action.
        if form is None or _starts_action(cursor):
            form = _take_form(cursor)
            guards_all = form.take_guard(cursor)
        is_guarded = form.take_guard(cursor) or guards_all
        found = form.read(cursor)
        parsed.extend(map(form.guarded, found) if is_guarded else found)
        if not cursor.take_operator(","):
            break
    if not cursor.is_done:
        cursor.fail("expected a comma or the end of the statement")
    return tuple(parsed)


def _starts_action(cursor: StatementCursor) -> bool:
    following = cursor.peek()
    if cursor.is_word("COMMENT"):
        return following.kind == "string" or following.is_operator("=")
    return cursor.is_word(*_VERBS) and following.kind in ("word", "quoted", "string")


class _Form(msgspec.Struct, frozen=True):
    """One action in the spelling of some dialects."""

    words: tuple[str, ...]
    """Words that start it."""
    read: _Read
    """Reads what follows them."""
    optional: tuple[str, ...] = ()
    """Words of which one may follow."""
    guard: tuple[str, ...] = ()
    """Words by which the action does nothing if its effect is there already."""

    def take_guard(self, cursor: StatementCursor) -> bool:
        return bool(self.guard) and cursor.take_words(*self.guard)

    def guarded(self, action: SchemaAction) -> SchemaAction:
        return msgspec.structs.replace(action, **{"_".join(self.guard).lower(): True})


def _take_form(cursor: StatementCursor) -> _Form:
    for form in _FORMS:
        if cursor.take_words(*form.words):
            cursor.take_word(*form.optional)
            return form
    verb = cursor.token
    expected = [form.words[1] for form in _FORMS if verb.is_word(form.words[0])]
    if expected:
        cursor.next()
    return cursor.fail(f"expected {', '.join(expected or _VERBS)}")


# Columns


def _read_add_columns(cursor: StatementCursor) -> Iterator[SchemaAction]:
    return _read_one_or_list(cursor, _read_definition)


def _read_definition(cursor: StatementCursor) -> Iterator[SchemaAction]:
    path = cursor.path("the name of the new column")
    yield actions.AddColumn(path, read_type(cursor), **_read_column_properties(cursor))


_PROPERTIES_ELSEWHERE = (
    "AS", "AUTO_INCREMENT", "AUTO_RANDOM", "CHARACTER", "CHARSET", "CHECK", "COLLATE",
    "COLUMN_FORMAT", "CONSTRAINT", "GENERATED", "KEY", "ON", "PRIMARY", "REFERENCES", "SERIAL",
    "STORAGE", "UNIQUE", "USING",
)  # fmt: skip
"""Words by which other dialects end the default of a column, and that Delta tables do not have."""


def _read_column_properties(cursor: StatementCursor) -> dict[str, Any]:
    """The properties of a column, as fields of `AddColumn`."""
    found: dict[str, Any] = {}
    while True:
        token = cursor.token
        given: dict[str, Any]
        if cursor.take_words("NOT", "NULL"):
            given = {"nullable": False}
        elif cursor.take_word("NULL"):
            given = {"nullable": True}
        elif cursor.take_word("DEFAULT"):
            stops = ("NOT", "NULL", "DEFAULT", "COMMENT", "FIRST", "AFTER", *_PROPERTIES_ELSEWHERE)
            given = {"default": "NULL" if cursor.take_word("NULL") else cursor.span(*stops)}
        elif cursor.take_word("COMMENT"):
            given = {"comment": cursor.string("the comment")}
        elif cursor.is_word("FIRST", "AFTER"):
            given = {"position": _read_position(cursor)}
        else:
            return found
        if given.keys() & found.keys():
            cursor.fail("the column has this twice", at=token)
        found |= given


def _read_position(cursor: StatementCursor) -> Position:
    if cursor.take_word("FIRST"):
        return Position()
    cursor.expect("AFTER")
    return Position(cursor.path()[-1])


def _read_drop_columns(cursor: StatementCursor) -> Iterator[SchemaAction]:
    def read_one(item: StatementCursor) -> Iterator[SchemaAction]:
        yield actions.DropColumn(item.path())

    yield from _read_one_or_list(cursor, read_one)
    cursor.take_word("RESTRICT")


def _read_rename(cursor: StatementCursor) -> Iterator[SchemaAction]:
    if cursor.is_word("TO") and not cursor.peek().is_word("TO"):
        cursor.fail("a table has a location, and no name to change; name the column to rename")
    path = cursor.path()
    cursor.expect("TO")
    yield actions.RenameColumn(path, _read_name_beside(cursor, path, "the new name"))


def _read_name_beside(cursor: StatementCursor, path: ColumnPath, what: str) -> str:
    """Take a new name in the struct of a column, given alone or as a path."""
    token = cursor.token
    target = cursor.path(what)
    parent = [fold_name(step) for step in path[:-1]]
    if len(target) > 1 and [fold_name(step) for step in target[:-1]] != parent:
        cursor.fail("a column stays in its struct: the new name is a single one", at=token)
    return target[-1]


def _read_alter(cursor: StatementCursor) -> Iterator[SchemaAction]:
    yield _read_alteration(cursor, cursor.path())


def _read_alteration(cursor: StatementCursor, path: ColumnPath) -> SchemaAction:
    if cursor.take_words("SET", "NOT"):
        cursor.expect("NULL")
        return actions.SetNullable(path, False)
    if cursor.take_words("SET", "DEFAULT"):
        return actions.SetDefault(path, cursor.span())
    is_set = cursor.take_word("SET")
    if cursor.take_word("TYPE") or (is_set and cursor.take_words("DATA", "TYPE")):
        data_type = read_type(cursor)
        return actions.ChangeType(
            path, data_type, cursor.span() if cursor.take_word("USING") else None
        )
    if is_set:
        return cursor.fail("expected TYPE, DEFAULT or NOT NULL")
    if cursor.take_words("DROP", "NOT", "NULL"):
        return actions.SetNullable(path, True)
    if cursor.take_word("DROP"):
        cursor.expect("DEFAULT")
        return actions.SetDefault(path, None)
    if cursor.take_word("COMMENT"):
        return actions.SetComment(path, cursor.string("the comment"))
    if cursor.is_word("FIRST", "AFTER"):
        return actions.MoveColumn(path, _read_position(cursor))
    return cursor.fail("expected TYPE, SET, DROP, COMMENT, FIRST or AFTER")


def _read_change(cursor: StatementCursor) -> Iterator[SchemaAction]:
    path = cursor.path()
    if cursor.is_word("TYPE", "SET", "DROP", "COMMENT", "FIRST", "AFTER"):
        yield _read_alteration(cursor, path)
        return
    new_name = _read_name_beside(cursor, path, "the name of the column after the change")
    yield from _read_redefinition(cursor, path)
    if new_name != path[-1]:
        yield actions.RenameColumn(path, new_name)


def _read_modify(cursor: StatementCursor) -> Iterator[SchemaAction]:
    yield from _read_redefinition(cursor, cursor.path())


def _read_redefinition(cursor: StatementCursor, path: ColumnPath) -> Iterator[SchemaAction]:
    yield actions.ChangeType(path, read_type(cursor))
    given = _read_column_properties(cursor)
    if "nullable" in given:
        yield actions.SetNullable(path, given["nullable"])
    if "default" in given:
        yield actions.SetDefault(path, given["default"])
    if "comment" in given:
        yield actions.SetComment(path, given["comment"])
    if "position" in given:
        yield actions.MoveColumn(path, given["position"])


# The table as a whole


def _read_add_constraint(cursor: StatementCursor) -> Iterator[SchemaAction]:
    name = cursor.name("the name of the constraint")
    cursor.expect("CHECK")
    yield actions.AddConstraint(name, cursor.parenthesised())
    cursor.take_word("ENFORCED")


def _read_drop_constraint(cursor: StatementCursor) -> Iterator[SchemaAction]:
    yield actions.DropConstraint(cursor.name("the name of the constraint"))


def _read_drop_feature(cursor: StatementCursor) -> Iterator[SchemaAction]:
    if cursor.token.kind == "string":
        name = cursor.string("the name of the feature")
    else:
        # Names of preview features contain a hyphen, and the name of one feature of this library a
        # dot.
        name = cursor.name("the name of the feature")
        while cursor.token.is_operator("-", "."):
            name += f"{cursor.next().text}{cursor.name()}"
    yield actions.DropFeature(name, truncate_history=cursor.take_words("TRUNCATE", "HISTORY"))


def _read_set_properties(cursor: StatementCursor) -> Iterator[SchemaAction]:
    yield actions.SetProperties(dict(_read_list(cursor, _read_property)))


def _read_property(cursor: StatementCursor) -> tuple[str, object]:
    key = _read_property_key(cursor)
    cursor.take_operator("=", "==")
    token = cursor.token
    if token.kind not in ("string", "number") and not token.is_word("TRUE", "FALSE"):
        cursor.fail("expected a text in quotes, a number, TRUE or FALSE for the property")
    text = cursor.next().text
    return key, text if token.kind == "string" else text.lower()


def _read_unset_properties(cursor: StatementCursor) -> Iterator[SchemaAction]:
    yield actions.UnsetProperties(tuple(_read_list(cursor, _read_property_key)))


def _read_property_key(cursor: StatementCursor) -> str:
    if cursor.token.kind == "string":
        return cursor.string("the name of a property")
    return ".".join(cursor.path("the name of a property"))


def _read_cluster_by(cursor: StatementCursor) -> Iterator[SchemaAction]:
    is_none = cursor.take_word("NONE")
    yield actions.ClusterBy(() if is_none else tuple(_read_list(cursor, StatementCursor.path)))


def _read_table_comment(cursor: StatementCursor) -> Iterator[SchemaAction]:
    cursor.take_operator("=")
    text = cursor.string("the comment") or None
    yield actions.SetTableText("description", text)


def _read_list(cursor: StatementCursor, read: Callable[[StatementCursor], _T]) -> list[_T]:
    """What is read between parentheses, separated by commas."""
    cursor.expect("(")
    found = [read(cursor)]
    while cursor.take_operator(","):
        found.append(read(cursor))
    cursor.expect(")")
    return found


def _read_one_or_list(cursor: StatementCursor, read: _Read) -> Iterator[SchemaAction]:
    if not cursor.token.is_operator("("):
        return read(cursor)
    return chain.from_iterable(_read_list(cursor, lambda item: tuple(read(item))))


_IF_EXISTS = ("IF", "EXISTS")
_FORMS = (
    _Form(("ADD", "CONSTRAINT"), _read_add_constraint),
    _Form(("ADD",), _read_add_columns, ("COLUMN", "COLUMNS"), ("IF", "NOT", "EXISTS")),
    _Form(("DROP", "FEATURE"), _read_drop_feature),
    _Form(("DROP", "CONSTRAINT"), _read_drop_constraint, guard=_IF_EXISTS),
    _Form(("DROP", "CHECK"), _read_drop_constraint, guard=_IF_EXISTS),
    _Form(("DROP",), _read_drop_columns, ("COLUMN", "COLUMNS"), _IF_EXISTS),
    _Form(("RENAME",), _read_rename, ("COLUMN",)),
    _Form(("ALTER",), _read_alter, ("COLUMN",)),
    _Form(("CHANGE",), _read_change, ("COLUMN",)),
    _Form(("MODIFY",), _read_modify, ("COLUMN",)),
    _Form(("SET", "TBLPROPERTIES"), _read_set_properties),
    _Form(("UNSET", "TBLPROPERTIES"), _read_unset_properties, guard=_IF_EXISTS),
    _Form(("CLUSTER", "BY"), _read_cluster_by),
    _Form(("COMMENT",), _read_table_comment),
)
_VERBS = tuple(dict.fromkeys(form.words[0] for form in _FORMS))
