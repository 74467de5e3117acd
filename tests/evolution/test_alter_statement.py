"""`ALTER TABLE` in the spellings of several engines, and what does not parse."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_delta.errors import InvalidArgument
from dagster_delta.evolution.actions import (
    AddColumn,
    AddConstraint,
    ChangeType,
    ClusterBy,
    DropColumn,
    DropConstraint,
    DropFeature,
    MoveColumn,
    RenameColumn,
    SchemaAction,
    SetComment,
    SetDefault,
    SetNullable,
    SetProperties,
    SetTableText,
    UnsetProperties,
)
from dagster_delta.evolution.column_paths import dotted, to_path
from dagster_delta.evolution.statement import parse_alter
from dagster_delta.protocol.features.column_change import Position
from dagster_delta.protocol.schema import ArrayType, DecimalType, PrimitiveType
from dagster_delta.sql.typed import quote_path

INT, LONG, STRING = map(PrimitiveType, ("integer", "long", "string"))

SPELLINGS: list[tuple[str, list[SchemaAction]]] = [
    # DuckDB and DuckLake
    ("ADD COLUMN c INTEGER", [AddColumn(("c",), INT)]),
    ("ADD c INTEGER", [AddColumn(("c",), INT)]),
    ("ADD COLUMN c VARCHAR DEFAULT 'd'", [AddColumn(("c",), STRING, default="'d'")]),
    ("ADD COLUMN s.f INTEGER", [AddColumn(("s", "f"), INT)]),
    ("ADD COLUMN IF NOT EXISTS c INT", [AddColumn(("c",), INT, if_not_exists=True)]),
    (
        "ADD IF NOT EXISTS c INT, d INT, ADD e INT",
        [
            AddColumn(("c",), INT, if_not_exists=True),
            AddColumn(("d",), INT, if_not_exists=True),
            AddColumn(("e",), INT),
        ],
    ),
    (
        "DROP COLUMN IF EXISTS c, d.e, DROP f, g",
        [
            DropColumn(("c",), if_exists=True),
            DropColumn(("d", "e"), if_exists=True),
            DropColumn(("f",)),
            DropColumn(("g",)),
        ],
    ),
    (
        "DROP CONSTRAINT IF EXISTS c, d",
        [DropConstraint("c", if_exists=True), DropConstraint("d", if_exists=True)],
    ),
    ('ADD COLUMN "a b" INTEGER[]', [AddColumn(("a b",), ArrayType(INT))]),
    ("DROP COLUMN s.f", [DropColumn(("s", "f"))]),
    ("DROP IF EXISTS c RESTRICT", [DropColumn(("c",), if_exists=True)]),
    ("RENAME a TO b", [RenameColumn(("a",), "b")]),
    ("RENAME s.f TO g", [RenameColumn(("s", "f"), "g")]),
    ("ALTER a SET TYPE BIGINT", [ChangeType(("a",), LONG)]),
    ("ALTER a SET DATA TYPE BIGINT", [ChangeType(("a",), LONG)]),
    ("ALTER a TYPE BIGINT", [ChangeType(("a",), LONG)]),
    ("ALTER a SET DEFAULT 1 + 2", [SetDefault(("a",), "1 + 2")]),
    ("ALTER a DROP DEFAULT", [SetDefault(("a",), None)]),
    ("ALTER a SET NOT NULL", [SetNullable(("a",), False)]),
    ("ALTER COLUMN a DROP NOT NULL", [SetNullable(("a",), True)]),
    # Spark and Delta
    (
        "ADD COLUMNS (a INT NOT NULL COMMENT 'x' FIRST, b STRING AFTER a)",
        [
            AddColumn(("a",), INT, nullable=False, comment="x", position=Position()),
            AddColumn(("b",), STRING, position=Position("a")),
        ],
    ),
    ("ADD COLUMNS a INT, b INT", [AddColumn(("a",), INT), AddColumn(("b",), INT)]),
    ("DROP COLUMNS (a, s.b)", [DropColumn(("a",)), DropColumn(("s", "b"))]),
    ("RENAME COLUMN `a.b` TO `c d`", [RenameColumn(("a.b",), "c d")]),
    ("ALTER COLUMN a.element.x TYPE BIGINT", [ChangeType(("a", "element", "x"), LONG)]),
    ("ALTER COLUMN m.key TYPE BIGINT", [ChangeType(("m", "key"), LONG)]),
    ("ALTER COLUMN a COMMENT 'it''s'", [SetComment(("a",), "it's")]),
    ("CHANGE COLUMN a FIRST", [MoveColumn(("a",), Position())]),
    ("ALTER COLUMN a AFTER b", [MoveColumn(("a",), Position("b"))]),
    (
        "ALTER COLUMN a TYPE BIGINT, b COMMENT 'x'",
        [ChangeType(("a",), LONG), SetComment(("b",), "x")],
    ),
    ("ADD CONSTRAINT c CHECK (a > (1) AND b)", [AddConstraint("c", "a > (1) AND b")]),
    ("DROP CONSTRAINT IF EXISTS c", [DropConstraint("c", if_exists=True)]),
    (
        "SET TBLPROPERTIES ('delta.appendOnly' = 'true', my.key = 3)",
        [SetProperties({"delta.appendOnly": "true", "my.key": "3"})],
    ),
    (
        "UNSET TBLPROPERTIES IF EXISTS ('a', b.c)",
        [UnsetProperties(("a", "b.c"), if_exists=True)],
    ),
    ("CLUSTER BY (a, s.b)", [ClusterBy((("a",), ("s", "b")))]),
    ("CLUSTER BY NONE", [ClusterBy(())]),
    (
        "DROP FEATURE typeWidening-preview TRUNCATE HISTORY",
        [DropFeature("typeWidening-preview", truncate_history=True)],
    ),
    # MySQL and TiDB
    ("MODIFY a BIGINT", [ChangeType(("a",), LONG)]),
    (
        "MODIFY COLUMN a BIGINT NOT NULL DEFAULT 7 COMMENT 'c' AFTER b",
        [
            ChangeType(("a",), LONG),
            SetNullable(("a",), False),
            SetDefault(("a",), "7"),
            SetComment(("a",), "c"),
            MoveColumn(("a",), Position("b")),
        ],
    ),
    (
        "CHANGE COLUMN a b INT UNSIGNED NULL",
        [ChangeType(("a",), LONG), SetNullable(("a",), True), RenameColumn(("a",), "b")],
    ),
    ("DROP CHECK c", [DropConstraint("c")]),
    ("COMMENT = 'about'", [SetTableText("description", "about")]),
    (
        "ADD COLUMN a INT DEFAULT 1, DROP COLUMN b, MODIFY c DECIMAL(12,2)",
        [
            AddColumn(("a",), INT, default="1"),
            DropColumn(("b",)),
            ChangeType(("c",), DecimalType(12, 2)),
        ],
    ),
]


@pytest.mark.parametrize(("sql", "actions"), SPELLINGS, ids=[each[0] for each in SPELLINGS])
def test_every_spelling_says_what_it_says_elsewhere(sql: str, actions: list[SchemaAction]) -> None:
    assert list(parse_alter(sql)) == actions
    assert list(parse_alter(f"ALTER TABLE IF EXISTS cat.db.`t t`\n  {sql} ;")) == actions


@pytest.mark.parametrize(
    ("sql", "problem", "caret"),
    [
        ("", "expected ADD", 0),
        ("ALTER TABLE t", "the text ends", 13),
        ("ALTER TABLE t ADD COLUMN c, d INT", "expected a type", 26),
        ("ADD c FLOOT", "no type FLOOT", 6),
        ("ADD c int8", "TINYINT or BIGINT", 6),
        ("ADD c VARCHAR(10)", "length", 13),
        ("ADD c DECIMAL(39)", "1 to 38", 13),
        ("ADD c INT DEFAULT (1", "expected ')'", 20),
        ("DROP c CASCADE", "expected a comma or the end of the statement, not 'CASCADE'", 7),
        ("RENAME s.a TO t.b", "stays in its struct", 14),
        ("ALTER a BIGINT", "expected TYPE", 8),
        ("ADD a INT b INT", "expected a comma", 10),
        ("SET PARTITIONED BY (a)", "expected TBLPROPERTIES, not 'PARTITIONED'", 4),
        ("RENAM a TO b", "did you mean RENAME?", 0),
        ("ALTER COLUMN a TYP INT", "did you mean TYPE?", 15),
        ("ALTER a SET NOT NUL", "expected NULL, not 'NUL'; did you mean NULL?", 16),
        (
            "ALTER a SET DEFAUL 1",
            "expected TYPE, DEFAULT or NOT NULL, not 'DEFAUL'; did you mean DEFAULT?",
            12,
        ),
        ("ALTER a SET DATA INT", "expected TYPE, DEFAULT or NOT NULL", 12),
        ("SET TBLPROPERTIES (a = b)", "a text in quotes, a number, TRUE or FALSE", 23),
        ("CLUSTER BY a", "expected '(', not 'a'", 11),
        ("DROP TABLE t", "expected a comma", 11),
        ("ADD c INT GENERATED ALWAYS AS (1)", "expected a comma", 10),
        ("ADD CHECK (a > 0)", "expected a type", 10),
        ("ADD PRIMARY KEY (a)", "no type KEY", 12),
        ("RENAME TO other", "a table has a location, and no name to change", 7),
        ("ADD a ARRAY<ARRAY<INT>>>", "expected a comma or the end of the statement, not '>'", 23),
        ("ADD a ARRAY<ARRAY<INT>", "expected '>', and the text ends", 22),
        ("ADD a MAP<STRING>", "expected ',', not '>'", 16),
        ("ADD a INT DEFAULT 1 NULL DEFAULT 2", "the column has this twice", 25),
        ("MODIFY a INT NOT NULL COMMENT 'x' NULL", "the column has this twice", 34),
        ("ADD a STRUCT", "expected '<', and the text ends", 12),
    ],
)
def test_what_does_not_parse_is_marked(sql: str, problem: str, caret: int) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_alter(sql)
    message, line, mark = str(caught.value).split("\n")
    assert problem in message
    assert f"character {caret + 1})" in message
    assert line == f"  {sql}"
    assert mark == f"  {' ' * caret}^"


def test_the_mark_is_in_the_right_line() -> None:
    with pytest.raises(InvalidArgument, match=r"line 3, character 8"):
        parse_alter("ALTER TABLE t\nADD a INT,\nDROP b c")


def test_what_holds_no_lexeme_is_an_error_of_the_statement() -> None:
    with pytest.raises(InvalidArgument, match=r"not an ALTER TABLE statement: the quote ' is not"):
        parse_alter("ADD c INT DEFAULT '")
    with pytest.raises(InvalidArgument, match="cannot read"):
        parse_alter("ADD c INT; DROP d")


@pytest.mark.parametrize("name", ["colum", "table", "tabel", "columns_"])
def test_columns_may_be_named_nearly_like_a_word(name: str) -> None:
    assert parse_alter(f"ADD {name} INT, DROP {name}, ALTER {name} TYPE INT") == (
        AddColumn((name,), INT),
        DropColumn((name,)),
        ChangeType((name,), INT),
    )


NAMES = st.text(
    st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="`"), min_size=1
)


@given(st.lists(NAMES, min_size=1, max_size=4).map(tuple))
def test_any_name_can_be_quoted(path: tuple[str, ...]) -> None:
    assert parse_alter(f"DROP COLUMN {quote_path(path)}") == (DropColumn(path),)
    assert to_path(quote_path(path)) == path
    assert to_path(dotted(path)) == path


@given(st.text(max_size=60))
def test_any_text_parses_or_is_refused(sql: str) -> None:
    with suppress(InvalidArgument):
        assert parse_alter(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "MODIFY a INT AUTO_INCREMENT",
        "MODIFY COLUMN a INT NOT NULL UNIQUE KEY",
        "CHANGE a b INT PRIMARY KEY",
        "MODIFY a TIMESTAMP DEFAULT 1 + 1 ON UPDATE now()",
        "MODIFY a STRING DEFAULT 'a' COLLATE utf8mb4_bin",
        "MODIFY a STRING CHARACTER SET utf8mb4",
        "MODIFY a INT CHECK (a > 0)",
        "MODIFY a INT REFERENCES t (b)",
        "MODIFY a INT GENERATED ALWAYS AS (1)",
        "MODIFY COLUMN IF EXISTS a INT",
        "CHANGE IF EXISTS a b INT",
        "MODIFY a INT USING a + 1",
        "CHANGE s.a t.b INT",
    ],
)
def test_what_a_redefinition_cannot_say_is_refused(sql: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_alter(sql)


def test_an_expression_converts_the_values_of_a_column() -> None:
    expected = ChangeType(("a",), INT, "CAST(a AS INT) * 2")
    for verb in ("SET DATA TYPE", "SET TYPE", "TYPE"):
        (action,) = parse_alter(f"ALTER COLUMN a {verb} INT USING CAST(a AS INT) * 2")
        assert action == expected
    assert parse_alter("ALTER a TYPE INT USING f(a, 1), DROP b") == (
        ChangeType(("a",), INT, "f(a, 1)"),
        DropColumn(("b",)),
    )
