"""The API reference in the pages of `docs/`: signatures and docstrings, to be read in a clone.

`make docs` writes the text below each marker `<!-- ::: dagster_delta.name -->`, up to the marker
`<!-- end -->`. On the site, docs/site.py replaces it by the reference that mkdocstrings builds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from textwrap import indent
from typing import cast

import griffe

from docs.site import PlainDocstrings, StructSignatures

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(?ms)^<!-- ::: ([\w.]+) -->$.*?^<!-- end -->$")
_HIDDEN = {"arguments", "model_config", "forgives_unset", "passed_to"}
_CROSS_REFERENCE = re.compile(r"\[(\w+)\]\[[\w.]+\]")
_LINE = 100


def pages() -> list[Path]:
    """The pages that name parts of the API."""
    return [ROOT / "docs/components.md", *sorted((ROOT / "docs/api").glob("*.md"))]


def render(page: str) -> str:
    """The text of a page, with what the code says now."""
    return BLOCK.sub(lambda block: _block(block[1]), page)


@cache
def _package() -> griffe.Object:
    loaded = griffe.load(
        "dagster_delta",
        search_paths=[str(ROOT)],
        docstring_parser="google",
        docstring_options={"warn_unknown_params": False, "warnings": False},
        extensions=griffe.load_extensions("dataclasses", StructSignatures, PlainDocstrings),
    )
    return cast("griffe.Object", loaded)


def _resolve(member: griffe.Object | griffe.Alias) -> griffe.Object:
    return (
        cast("griffe.Alias", member).final_target
        if member.is_alias
        else cast("griffe.Object", member)
    )


def _block(path: str) -> str:
    target = _resolve(_package()[path.partition(".")[2]])
    parts = list(_module(target) if target.is_module else _entry(target, 2))
    text = "\n\n".join(parts)
    return f"<!-- ::: {path} -->\n\n{text}\n\n<!-- end -->"


def _module(module: griffe.Object) -> Iterator[str]:
    yield from _docstring(module)
    for member in module.members.values():
        if isinstance(member, griffe.Class) and not member.name.startswith("_"):
            yield from _entry(member, 2)


def _entry(target: griffe.Object, level: int) -> Iterator[str]:
    """A class with its members, or a function: heading, signature, docstring."""
    yield f"{'#' * level} {target.name}"
    if isinstance(target, griffe.Function | griffe.Class) and _is_called(target):
        yield _signature(target)
    yield from _docstring(target)
    if not isinstance(target, griffe.Class):
        return
    members = list(_members(target))
    fields = [member for member in members if isinstance(member, griffe.Attribute)]
    if fields:
        yield "\n".join(map(_field, fields))
    for member in members:
        if isinstance(member, griffe.Function):
            yield from _entry(member, level + 1)


def _is_called(target: griffe.Function | griffe.Class) -> bool:
    """Whether a class has arguments of its own; the fields of a model follow its docstring."""
    named = (parameter.name for parameter in target.parameters)
    return isinstance(target, griffe.Function) or any(
        name not in {"self", "data"} for name in named
    )


def _members(target: griffe.Class) -> Iterator[griffe.Object]:
    """What users call and read; those of other packages are left out."""
    for found in map(_resolve, target.all_members.values()):
        if (
            not found.name.startswith("_")
            and found.name not in _HIDDEN
            and found.has_docstring
            and found.path.startswith("dagster_delta.")
        ):
            yield found


def _signature(target: griffe.Function | griffe.Class) -> str:
    parts = list(_parameters(target.parameters))
    returned = ""
    if isinstance(target, griffe.Function) and target.returns is not None:
        returned = f" -> {target.returns}"
    line = f"{target.name}({', '.join(parts)}){returned}"
    if len(line) > _LINE:
        listed = indent("".join(f"{part},\n" for part in parts), "    ")
        line = f"{target.name}(\n{listed}){returned}"
    return f"```py\n{line}\n```"  # a signature is no whole statement


def _parameters(parameters: griffe.Parameters) -> Iterator[str]:
    starred = False
    for parameter in parameters:
        if parameter.name in {"self", "cls"}:
            continue
        kind = parameter.kind
        if kind is griffe.ParameterKind.var_positional:
            starred = True
        elif kind is griffe.ParameterKind.keyword_only and not starred:
            starred = True
            yield "*"
        stars = {
            griffe.ParameterKind.var_positional: "*",
            griffe.ParameterKind.var_keyword: "**",
        }.get(kind, "")
        typed = f": {parameter.annotation}" if parameter.annotation is not None else ""
        value = "" if parameter.default is None or stars else f" = {parameter.default}"
        yield f"{stars}{parameter.name}{typed}{value}"


def _field(field: griffe.Attribute) -> str:
    kind = f": {field.annotation}" if field.annotation is not None else ""
    value = f" = {field.value}" if field.value is not None and "(" not in str(field.value) else ""
    text = _plain(field.docstring.value) if field.docstring else ""
    code = f"{field.name}{kind}{value}".replace("\n", " ")
    return f"- `{code}`: {' '.join(text.split())}"


def _docstring(target: griffe.Object) -> Iterator[str]:
    if target.docstring is None:
        return
    for section in target.docstring.parsed:
        text = _section(section)
        if text:
            yield text


def _section(section: griffe.DocstringSection) -> str:
    if isinstance(section, griffe.DocstringSectionParameters | griffe.DocstringSectionAttributes):
        return "\n".join(
            f"- `{item.name}`: {' '.join(item.description.split())}" for item in section.value
        )
    if isinstance(section, griffe.DocstringSectionReturns | griffe.DocstringSectionYields):
        verb = "Returns" if isinstance(section, griffe.DocstringSectionReturns) else "Yields"
        return f"{verb}: " + " ".join(" ".join(item.description.split()) for item in section.value)
    if isinstance(section, griffe.DocstringSectionExamples):
        return "\n\n".join(text for _, text in section.value)
    if isinstance(section, griffe.DocstringSectionAdmonition):
        return _plain(section.value.contents)
    return _plain(str(section.value))


def _plain(text: str) -> str:
    """Without what only the site resolves."""
    return _CROSS_REFERENCE.sub(r"`\1`", text)


if __name__ == "__main__":
    for page in pages():
        page.write_text(render(page.read_text()))
