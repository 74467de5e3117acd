"""Which cases run when."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.families import PARTS, TURNS_ON_CONNECT, draw, family, is_turn_on_connect


def _item(parent: pytest.Module, name: str, *marks: str) -> pytest.Item:
    item: pytest.Item = pytest.Function.from_parent(parent, name=name, callobj=lambda: None)
    for mark in marks:
        item.add_marker(mark)
    return item


def _module(request: pytest.FixtureRequest) -> pytest.Module:
    """One without marks of its own."""
    module: pytest.Module = pytest.Module.from_parent(request.node.session, path=request.node.path)
    return module


def _drawn(parent: pytest.Module, turn: int, *marks: str) -> list[str]:
    items = [_item(parent, f"test_it[{number}]", *marks) for number in range(300)]
    draw([*items, _item(parent, "test_always")], turn)
    return [item.name for item in items if item.get_closest_marker("drawn")]


@pytest.mark.parametrize(
    ("marks", "parts"),
    [
        (("exhaustive",), PARTS["exhaustive"]),
        (("slow",), PARTS["slow"]),
        (("delta_spark", "exhaustive", "slow"), PARTS["exhaustive"]),
    ],
)
def test_each_case_is_drawn_once_in_as_many_turns_as_there_are_parts(
    request: pytest.FixtureRequest, marks: tuple[str, ...], parts: int
) -> None:
    module = _module(request)
    turns = [_drawn(module, turn, *marks) for turn in range(1370, 1370 + parts)]
    assert Counter(name for turn in turns for name in turn) == Counter(
        f"test_it[{number}]" for number in range(300)
    )
    assert max(map(len, turns)) < 3 * 300 / parts


def test_a_turn_draws_the_same_cases_again(request: pytest.FixtureRequest) -> None:
    module, parts = _module(request), PARTS["exhaustive"]
    drawn = [_drawn(module, turn, "exhaustive") for turn in (7, 7, 7 + parts)]
    assert drawn[0] == drawn[1] == drawn[2] != []


def test_what_runs_always_is_not_drawn(request: pytest.FixtureRequest) -> None:
    always = _item(_module(request), "test_always")
    for turn in range(PARTS["exhaustive"]):
        draw([always], turn)
    assert always.get_closest_marker("drawn") is None


@pytest.mark.parametrize("mark", ["exhaustive", "slow"])
def test_a_module_that_is_marked_is_drawn_as_a_whole(
    request: pytest.FixtureRequest, mark: str
) -> None:
    module = _module(request)
    module.add_marker(mark)
    counts = set()
    for turn in range(PARTS[mark]):
        items = [_item(module, f"test_it[{number}]") for number in range(20)]
        draw(items, turn)
        counts.add(sum(item.get_closest_marker("drawn") is not None for item in items))
    assert counts == {0, 20}


def test_each_module_has_one_turn_on_connect(request: pytest.FixtureRequest) -> None:
    for turns in (range(TURNS_ON_CONNECT), range(1370, 1370 + TURNS_ON_CONNECT)):
        assert sum(is_turn_on_connect(request.node, turn) for turn in turns) == 1


def test_a_family_names_its_examples() -> None:
    first, second = family(["a", "b"], "a")
    assert first == "a"
    assert isinstance(second, type(pytest.param()))
    assert [mark.name for mark in second.marks] == ["exhaustive"]
    with pytest.raises(AssertionError, match="no cases"):
        family(["a"], "c")
