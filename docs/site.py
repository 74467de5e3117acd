"""What MkDocs does not do by itself for the site: pages outside of `docs/`, and a page per class.

README.md is the first page, and the other pages of `OUTSIDE` are pages too. Links are written as
they work in the repository. On the site, a link to a page leads to that page; a link to a file that
is no page, such as a test, becomes its name. A link to nothing is left as it is, and ends the
strict build.

Each class that a page of `docs/api/`, or that of the components, names has a page of its own on the
site; mkdocstrings builds the reference in place of the text of docs/reference.py. Blocks of code
with a title that follow each other become tabs, the table of pages in README.md becomes cards, and
a picture `x.png` is shown as `x-dark.png` on dark pages.
"""

from __future__ import annotations

import ast
import inspect
import posixpath
import pydoc
import re
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, cast

from griffe import (
    Docstring,
    Expr,
    ExprCall,
    ExprKeyword,
    ExprName,
    ExprSubscript,
    ExprTuple,
    Extension,
    Function,
    Module,
    Parameter,
    ParameterKind,
    Parameters,
)
from mkdocs.structure.files import File

if TYPE_CHECKING:
    from griffe import Attribute, Class, Object
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]

OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
    "examples/shop/README.md": "examples/shop.md",
    "examples/weather/README.md": "examples/weather.md",
    "examples/orders_spark/README.md": "examples/orders_spark.md",
    "examples/lake/README.md": "examples/lake.md",
}
"""Pages outside of `docs/`, by their paths in the repository: their names on the site."""

_INSIDE = {name: path for path, name in OUTSIDE.items()}
_GENERATED = re.compile(r"(?ms)^<!-- (::: [\w.]+) -->$.*?^<!-- end -->$")
_CLASS = re.compile(r"(?m)^(?:<!-- )?::: (dagster_delta\.(?:\w+\.)*([A-Z]\w+))(?: -->)?$")
_CLASS_PAGE = """---
title: {name}
---

::: {path}
    options:
      heading_level: 1
"""
_TITLED = r'^```python title="([^"]+)"\n((?:(?!```)[^\n]*\n)*)```\n'
_TABS = re.compile(rf"(?:{_TITLED}\n?){{2,}}", re.DOTALL | re.MULTILINE)
_PAGES = re.compile(r"(?m)^\| To \| Read \|\n\|.*\n((?:\|.*\n)+)")
_PICTURE = re.compile(r"!\[[^\]]*\]\((?:docs/)?(images/[\w-]+)\.png\)")
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
_EXAMPLES = re.compile(r"(?m)^Examples:\n((?:    .*\n?|\n)+)")
_RAISES = re.compile(r"(?m)^Raises:\n((?:    .*\n?|\n)+)")
_DOCUMENTING = ".Resolver"
_STATEMENT = re.compile(r"(?P<kind>Statement|Factory)\(lambda: operations\.(?P<page>[\w.]+)\)")
_NAME = re.compile(r"\w+")
_NAMES = re.compile(r"[A-Z]\w+(?:, [A-Z]\w+)*")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The navigation, with the classes of an API page below it."""
    for pages in (pages for section in config.nav or () for pages in section.values()):
        for number, page in enumerate(pages if isinstance(pages, list) else ()):
            text = (ROOT / "docs" / page).read_text() if page in _with_classes() else ""
            if classes := [{name: f"api/{name}.md"} for _, name in _CLASS.findall(text)]:
                title = text.partition("\n")[0].removeprefix("# ")
                pages[number] = {title: [page, *classes]}
    return config


def _with_classes() -> list[str]:
    """The pages that name classes, below `docs/`."""
    return [
        "components.md",
        *(f"api/{page.name}" for page in sorted((ROOT / "docs/api").glob("*.md"))),
    ]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The files of the site, with the pages from outside of `docs/` and those of classes."""
    for path, name in OUTSIDE.items():
        files.append(File.generated(config, name, content=(ROOT / path).read_text()))
    for page in _with_classes():
        for path, name in _CLASS.findall((ROOT / "docs" / page).read_text()):
            content = _CLASS_PAGE.format(path=path, name=name)
            files.append(File.generated(config, f"api/{name}.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The text of a page, with links that work on the site."""
    here = page.file.src_uri
    source = _INSIDE.get(here) or f"docs/{here}"
    if config.repo_url and (ROOT / source).exists():
        page.edit_url = posixpath.join(config.repo_url, "edit/main", source)
    if source.removeprefix("docs/") in _with_classes():
        markdown = _CLASS.sub(partial(_summary, here), _GENERATED.sub(r"\1", markdown))
    if here == "index.md":
        page.meta["hide"] = ["navigation"]
    markdown = _PAGES.sub(_cards, _TABS.sub(_tabs, _PICTURE.sub(_in_both_themes, markdown)))

    def on_site(found: re.Match[str]) -> str:
        image, text, target, anchor = found.groups()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        name = OUTSIDE.get(path) or path.removeprefix("docs/")
        if files.get_file_from_path(name) is not None:
            target = posixpath.relpath(name, posixpath.dirname(here) or ".")
            return f"{image}[{text}]({target}{anchor or ''})"
        return text if (ROOT / path).exists() else found[0]

    return _LINK.sub(on_site, markdown)


def _tabs(found: re.Match[str]) -> str:
    """Blocks of code as tabs with their titles."""
    return "\n".join(
        f'=== "{title}"\n\n' + indent(f"```python\n{code}```\n", " " * 4)
        for title, code in re.findall(_TITLED, found[0], re.DOTALL | re.MULTILINE)
    )


def _in_both_themes(found: re.Match[str]) -> str:
    """A picture, and that of a dark page if there is one."""
    light = found[0]
    if not (ROOT / f"docs/{found[1]}-dark.png").exists():
        return light
    dark = light.replace(".png", "-dark.png#only-dark")
    return light.replace(".png", ".png#only-light") + dark


def _cards(found: re.Match[str]) -> str:
    """Rows of two cells as cards: what for, and the pages."""
    rows = (row.strip("| ").split(" | ", 1) for row in found[1].splitlines())
    items = "\n".join(
        f"- **{purpose[0].upper()}{purpose[1:]}**\n\n    {links}\n" for purpose, links in rows
    )
    return f'<div class="grid cards" markdown>\n\n{items}\n</div>\n'


def _summary(here: str, found: re.Match[str]) -> str:
    """A class on the page of its group: its name, and the first paragraph of its docstring."""
    path, name = found.groups()
    first, _, _ = (inspect.getdoc(pydoc.locate(path)) or "").partition("\n\n")
    target = posixpath.relpath(f"api/{name}.md", posixpath.dirname(here) or ".")
    return f"## [{name}]({target})\n\n{first}\n"


class StructSignatures(Extension):
    """Gives each `msgspec.Struct` the signature that it has, as dataclasses get theirs."""

    def on_package(self, *, pkg: Module, **kwargs: object) -> None:  # noqa: ARG002  as it is called
        """Add the constructors and the statements of a loaded package."""
        _add_constructors(pkg)
        _bind_statements(pkg)


def _add_constructors(module: Module) -> None:
    for inner in module.modules.values():
        if not inner.is_alias:
            _add_constructors(inner)
    for cls in module.classes.values():
        if not cls.is_alias and "__init__" not in cls.members and (fields := _struct_fields(cls)):
            made = Function("__init__", parameters=Parameters(*fields.values()), parent=cls)
            cls.set_member("__init__", made)


def _bind_statements(package: Module) -> None:
    """Give the table the functions that its statements are."""
    operations = cast("Module", package["table.operations"])
    table = cast("Class", package["table.delta_table.DeltaTable"])
    for name, attribute in list(table.attributes.items()):
        if bound := _STATEMENT.fullmatch(str(attribute.value)):
            page = cast("Function", operations[bound["page"]])
            _, *parameters = page.parameters
            method = Function(
                name,
                parameters=Parameters(*parameters),
                returns=table.name if bound["kind"] == "Factory" else page.returns,
                docstring=page.docstring,
                lineno=page.lineno,
                parent=table,
            )
            table.set_member(name, method)


def _struct_fields(cls: Class) -> dict[str, Parameter]:
    """The arguments of a struct; empty for other classes."""
    bases = [base for base in cls.mro() if not base.is_alias]
    parents = [str(base) for parent in (cls, *bases) for base in parent.bases]
    if not any(parent.endswith("Struct") for parent in parents):
        return {}
    has_keywords_only = "kw_only" in cls.keywords
    kind = ParameterKind.keyword_only if has_keywords_only else ParameterKind.positional_or_keyword
    return {
        name: Parameter(
            name, annotation=attribute.annotation, kind=kind, default=_default_of(attribute)
        )
        for parent in (*reversed(bases), cls)
        for name, attribute in parent.attributes.items()
        if "property" not in attribute.labels
        and attribute.annotation is not None
        and "ClassVar" not in str(attribute.annotation)
    }


def _default_of(attribute: Attribute) -> str | Expr | None:
    """The default of a field; that of a factory as what it makes."""
    value = attribute.value
    if not isinstance(value, ExprCall) or not str(value.function).endswith("field"):
        return value
    made = {"dict": "{}", "list": "[]", "set": "set()", "tuple": "()"}
    factory = str(value.arguments[0]).partition("=")[2].strip()
    return made.get(factory, f"{factory}()")


class PlainDocstrings(Extension):
    """Docstrings as they are written here: examples are code, and `Raises` names several errors at
    once, or says it in a sentence. The fields of a model are its attributes.
    """

    def on_object(self, *, obj: Object, **_: object) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring is not None:
            text = _EXAMPLES.sub(_fenced, obj.docstring.value)
            obj.docstring.value = _RAISES.sub(_listed, text)
        if obj.is_attribute:
            _describe(cast("Attribute", obj))


def _describe(attribute: Attribute) -> None:
    """The text and default of a field, from `Field(…)` or `Annotated[…, Resolver(…)]`."""
    text = _noted(attribute)
    if (
        isinstance(attribute.value, ExprCall)
        and _path(attribute.value.function) == "pydantic.Field"
    ):
        given = _keywords(attribute.value)
        if "description" in given:
            text = _text(given["description"], attribute)
        if "alias" in given:
            own = attribute.docstring.value if attribute.docstring else ""
            text = f"{text or own} Its name is `{_text(given['alias'], attribute)}`."
        first = attribute.value.arguments[0] if attribute.value.arguments else None
        positional = None if isinstance(first, ExprKeyword) or str(first) == "..." else first
        attribute.value = given.get("default", positional)
    if text is None and attribute.docstring is None:
        text = _of_argument(attribute)
    if text is not None:
        attribute.docstring = Docstring(text, parent=attribute)


def _of_argument(attribute: Attribute) -> str | None:
    """The text of a field that is an argument of a function, which describes it."""
    owner = attribute.parent
    if owner is None or not owner.is_class or ".orchestration." not in owner.path:
        return None
    field = getattr(pydoc.locate(owner.path), "model_fields", {}).get(attribute.name)
    return None if field is None else field.description


def _noted(attribute: Attribute) -> str | None:
    annotated: Expr | str | None = attribute.annotation
    if isinstance(annotated, ExprName) and annotated.name.endswith("Field"):
        alias = attribute.modules_collection[_path(annotated)]
        annotated = cast("Attribute", alias).value if alias.is_attribute else annotated
    if not isinstance(annotated, ExprSubscript) or not isinstance(annotated.slice, ExprTuple):
        return None
    kind, *notes = annotated.slice.elements
    for note in notes:
        if isinstance(note, ExprCall) and _path(note.function).endswith(_DOCUMENTING):
            attribute.annotation = kind
            return _text(_keywords(note).get("description", note.arguments[0]), attribute)
    return None


def _keywords(call: ExprCall) -> dict[str, Expr | str]:
    return {part.name: part.value for part in call.arguments if isinstance(part, ExprKeyword)}


def _path(expression: Expr | str | None) -> str:
    return expression.canonical_path if isinstance(expression, Expr) else str(expression)


def _text(literal: Expr | str | None, attribute: Attribute) -> str:
    if isinstance(literal, ExprName):
        literal = cast("Attribute", attribute.modules_collection[_path(literal)]).value
    return str(ast.literal_eval(str(literal)))


def _fenced(found: re.Match[str]) -> str:
    code = found[1].rstrip("\n")
    if "```" in code or ">>>" in code:
        return found[0]
    language = "yaml" if code.lstrip().startswith("type:") else "python"
    return f"Examples:\n    ```{language}\n{code}\n    ```\n"


def _listed(found: re.Match[str]) -> str:
    items: list[str] = []
    for line in found[1].strip().splitlines():
        # An entry is a sentence; its further lines are not always indented.
        if items and (line.startswith("     ") or not items[-1].endswith(".")):
            items[-1] += f" {line.strip()}"
        elif line.strip():
            items.append(line.strip())
    return "**Raises:**\n\n" + "\n".join(f"- {_linked(each)}" for each in items) + "\n\n"


def _linked(entry: str) -> str:
    names, colon, text = entry.partition(":")
    if not colon and _NAMES.fullmatch(entry.removesuffix(".")):
        names, text = entry.removesuffix("."), "."
    if not _NAMES.fullmatch(names):
        return entry
    return _NAME.sub(lambda name: _cross_reference(name[0]), names) + colon + text


def _cross_reference(name: str) -> str:
    if (ROOT / "dagster_delta/errors.py").read_text().count(f"class {name}("):
        return f"[{name}][dagster_delta.errors.{name}]"
    return f"`{name}`"
