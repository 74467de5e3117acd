"""The state of many tables on one page: figures, thresholds that are exceeded, and plots."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from dagster import MetadataValue, TableColumn, TableRecord, TableSchema

from dagster_delta.orchestration.checks.table_checks import health_measure
from dagster_delta.orchestration.maintenance.steps import spell_bytes
from dagster_delta.orchestration.table_history import plain_markdown

if TYPE_CHECKING:
    from dagster import AssetKey

    from dagster_delta.table.operations.health import TableHealth


FIGURES_KEY = "delta/figures"
"""Metadata with the figures of each table, from which later reports show growth."""

_Healths = Sequence[tuple[str, "TableHealth"]]
"""Names of the tables that could be read, and their shapes."""

_MAX_BARS = 12
_MAX_FINDINGS = 50
_MAX_TABLES = 500


@dataclass(frozen=True, slots=True)
class TableState:
    """One table of the page."""

    name: str
    asset_key: AssetKey | None = None
    health: TableHealth | None = None
    """None if the table could not be read, or does not exist yet."""
    committed_ms: int | None = None
    """Time of the latest commit, in milliseconds since the epoch."""
    problem: str | None = None
    """Why the table could not be read."""

    def beyond(self, thresholds: Mapping[str, float]) -> dict[str, float]:
        """The measures beyond their thresholds."""
        if self.health is None:
            return {}
        values = {name: health_measure(self.health, name) for name in thresholds}
        return {
            name: value
            for name, value in values.items()
            if value is not None and value > thresholds[name]
        }


@dataclass(frozen=True, slots=True)
class EarlierReport:
    """Figures of an earlier page."""

    time: dt.datetime
    size_bytes: Mapping[str, int]
    """By table."""


def health_page_metadata(
    states: Sequence[TableState],
    thresholds: Mapping[str, float],
    earlier: Sequence[EarlierReport],
    now: dt.datetime,
) -> dict[str, Any]:
    """The page as metadata of an asset: report, one table with all states, totals. `thresholds` are
    the largest allowed values by measure; earlier reports come oldest first.
    """
    read = [(state.name, state.health) for state in states if state.health is not None]
    due = [state for state in states if state.problem or state.beyond(thresholds)]
    growth = _growth(read, earlier)
    summary = f"### {len(due)} of {len(states)} tables need attention"
    page = [summary, *_findings(due, thresholds)]
    page += _plots(read, earlier, now)
    records = [_record(each, thresholds, growth) for each in _worst_first(states, thresholds)]
    return {
        "delta/health": MetadataValue.md("\n\n".join(page)),
        "delta/num_tables": len(states),
        "delta/num_due_tables": len(due),
        "delta/num_files": sum(health.num_files for _, health in read),
        "delta/num_small_files": sum(health.num_small_files for _, health in read),
        "delta/size_bytes": sum(health.size_bytes for _, health in read),
        "delta/tables": MetadataValue.table(records[:_MAX_TABLES], schema=_SCHEMA),
        FIGURES_KEY: MetadataValue.json({name: health.size_bytes for name, health in read}),
    }


def _worst_first(states: Sequence[TableState], thresholds: Mapping[str, float]) -> list[TableState]:
    def rank(state: TableState) -> tuple[bool, int, int]:
        size = 0 if state.health is None else state.health.size_bytes
        return state.problem is None, -len(state.beyond(thresholds)), -size

    return sorted(states, key=rank)


def _growth(read: _Healths, earlier: Sequence[EarlierReport]) -> dict[str, int]:
    """Bytes since the previous report, by table."""
    before = earlier[-1].size_bytes if earlier else {}
    return {name: health.size_bytes - before[name] for name, health in read if name in before}


_SCHEMA = TableSchema(
    [
        TableColumn("state", "string"),
        TableColumn("table", "string"),
        TableColumn("size", "string"),
        TableColumn("growth", "string", description="Since the previous report."),
        TableColumn("rows", "int"),
        TableColumn("files", "int"),
        TableColumn("small", "int", description="Files that OPTIMIZE would compact."),
        TableColumn("deleted", "int", description="Rows that OPTIMIZE would remove."),
        TableColumn("skew", "float", description="Largest partition, divided by the mean one."),
        TableColumn("uncheckpointed", "int", description="Commits since the checkpoint."),
        TableColumn("version", "int"),
        TableColumn("last commit (UTC)", "string"),
    ]
)


def _record(
    state: TableState, thresholds: Mapping[str, float], growth: Mapping[str, int]
) -> TableRecord:
    health = state.health
    if health is None:
        cells: list[str | int | float | bool | None] = [None] * (len(_SCHEMA.columns) - 2)
        verdict = "unreadable" if state.problem else "no table yet"
        return _as_record([verdict, state.name, *cells])
    change = growth.get(state.name)
    return _as_record(
        [
            ", ".join(state.beyond(thresholds)) or "ok",
            state.name,
            _cell(spell_bytes(health.size_bytes)),
            None if change is None else _cell(_signed_bytes(change)),
            health.num_records,
            health.num_files,
            health.num_small_files,
            health.num_deleted_records,
            round(health.partition_skew, 2),
            health.commits_since_checkpoint,
            health.version,
            None if state.committed_ms is None else _minute(state.committed_ms),
        ]
    )


def _as_record(cells: Sequence[str | int | float | bool | None]) -> TableRecord:
    names = [column.name for column in _SCHEMA.columns]
    return TableRecord(dict(zip(names, cells, strict=True)))


def _findings(due: Sequence[TableState], thresholds: Mapping[str, float]) -> list[str]:
    if not due:
        return []
    lines = [f"- {_link(each)}: {_finding(each, thresholds)}" for each in due[:_MAX_FINDINGS]]
    if len(due) > _MAX_FINDINGS:
        lines.append(f"- and {len(due) - _MAX_FINDINGS} more")
    return ["\n".join(lines)]


def _finding(state: TableState, thresholds: Mapping[str, float]) -> str:
    if state.problem:
        return f"cannot be read: {plain_markdown(state.problem)}"
    return ", ".join(
        f"{plain_markdown(name)} is {value:g}; the limit is {thresholds[name]:g}"
        for name, value in state.beyond(thresholds).items()
    )


def _link(state: TableState) -> str:
    name = plain_markdown(state.name)
    if state.asset_key is None:
        return name
    # Relative, since a run does not know the address of the UI.
    return f"[{name}](/assets/{'/'.join(state.asset_key.path)})"


def _plots(read: _Healths, earlier: Sequence[EarlierReport], now: dt.datetime) -> list[str]:
    plots = []
    sizes = _bars(read, lambda health: (health.size_bytes, 0))
    files = _bars(read, lambda health: (health.num_files, health.num_small_files))
    skew = _bars(
        read, lambda health: (health.partition_skew if health.num_partitions > 1 else 0, 0)
    )
    for title, bars, spell in (
        ("Largest tables", sizes, spell_bytes),
        ("Most files; small ones are red", files, "{:,.0f}".format),
        ("Partition skew: largest partition, divided by the mean one", skew, "{:.1f}".format),
    ):
        if bars:
            plots.append(image_markdown(title, bar_chart(title, bars, spell)))
    totals = [(each.time, sum(each.size_bytes.values())) for each in earlier]
    totals.append((now, sum(health.size_bytes for _, health in read)))
    if len(totals) > 1:
        title = "Size of all tables, by report"
        points = [(f"{time:%Y-%m-%d %H:%M}", float(size)) for time, size in totals]
        plots.append(image_markdown(title, line_chart(title, points, spell_bytes)))
    return plots


def _bars(read: _Healths, measure: Callable[[TableHealth], tuple[float, float]]) -> list[Bar]:
    """The largest tables by a measure and its marked part, without those that have none of it."""
    bars = [Bar(name, *measure(health)) for name, health in read]
    bars.sort(key=lambda bar: -bar.value)
    return [bar for bar in bars if bar.value > 0][:_MAX_BARS]


def _cell(text: str) -> str:
    """The text, which the UI does not break into lines."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _signed_bytes(size: int) -> str:
    if not size:
        return "0"
    return f"{'-' if size < 0 else '+'}{spell_bytes(abs(size))}"


def _minute(timestamp_ms: int) -> str:
    return _cell(f"{dt.datetime.fromtimestamp(timestamp_ms / 1000, dt.UTC):%Y-%m-%d %H:%M}")


_WIDTH = 720
_LABEL_WIDTH = 230
_FIGURE_WIDTH = 110
_BAR_HEIGHT = 18
_TITLE_HEIGHT = 34
_LINE_HEIGHT = 190
_MAX_LABEL = 34

# The second colour marks a part; people who are colour-blind can tell them apart.
_COLOR = "#4C78A8"
_MARKED_COLOR = "#E45756"
_TEXT = 'font-family="sans-serif" font-size="12" fill="#333333"'


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar, with a part of it marked."""

    label: str
    value: float
    marked: float = 0.0
    """Part of the value, from 0 to `value`."""


def bar_chart(title: str, bars: Sequence[Bar], spell: Callable[[float], str]) -> str:
    """A horizontal bar chart."""
    largest = max((bar.value for bar in bars), default=0) or 1
    room = _WIDTH - _LABEL_WIDTH - _FIGURE_WIDTH
    parts = []
    for number, each in enumerate(bars):
        top = _TITLE_HEIGHT + number * (_BAR_HEIGHT + 4)
        for value, color in ((each.value, _COLOR), (each.marked, _MARKED_COLOR)):
            if value > 0:
                parts.append(_bar(top, max(1.0, room * value / largest), color))
        middle = top + _BAR_HEIGHT - 5
        parts.append(_text(_LABEL_WIDTH - 8, middle, _short(each.label), anchor="end"))
        end = _LABEL_WIDTH + room * each.value / largest + 6
        parts.append(_text(end, middle, spell(each.value)))
    return _svg(title, _TITLE_HEIGHT + len(bars) * (_BAR_HEIGHT + 4) + 6, parts)


def line_chart(
    title: str, points: Sequence[tuple[str, float]], spell: Callable[[float], str]
) -> str:
    """A line through values at equal distances, from zero. Points are labels and values from left
    to right, two at least; values are not negative.
    """
    largest = max(value for _, value in points) or 1
    left, right, bottom = 90, _WIDTH - 40, _TITLE_HEIGHT + _LINE_HEIGHT
    step = (right - left) / (len(points) - 1)
    spots = [
        (left + number * step, bottom - (_LINE_HEIGHT - 10) * value / largest)
        for number, (_, value) in enumerate(points)
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
    parts = [
        f'<line x1="{left}" y1="{bottom}" x2="{right}" y2="{bottom}" stroke="#999999"/>',
        f'<polyline points="{path}" fill="none" stroke="{_COLOR}" stroke-width="2"/>',
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{_COLOR}"/>' for x, y in spots),
        _text(left - 8, bottom - _LINE_HEIGHT + 14, spell(largest), anchor="end"),
        _text(left - 8, bottom, spell(0), anchor="end"),
        _text(left, bottom + 18, points[0][0]),
        _text(right, bottom + 18, points[-1][0], anchor="end"),
    ]
    return _svg(title, bottom + 28, parts)


def image_markdown(title: str, svg: str) -> str:
    """The image as Markdown, embedded as a data URI: the UI loads nothing from elsewhere. The title
    is for readers who do not see the image.
    """
    encoded = base64.b64encode(svg.encode()).decode("ascii")
    return f"![{title}](data:image/svg+xml;base64,{encoded})"


def _bar(top: float, width: float, color: str) -> str:
    place = f'x="{_LABEL_WIDTH}" y="{top}" width="{width:.1f}" height="{_BAR_HEIGHT}"'
    return f'<rect {place} fill="{color}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {_TEXT}>{escape(text)}</text>'


def _short(label: str) -> str:
    return label if len(label) <= _MAX_LABEL else "…" + label[1 - _MAX_LABEL :]


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    size = f'width="{_WIDTH}" height="{height:.0f}" viewBox="0 0 {_WIDTH} {height:.0f}"'
    heading = (
        f'<text x="0" y="18" font-family="sans-serif" font-size="14" font-weight="bold" '
        f'fill="#333333">{escape(title)}</text>'
    )
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{heading}{"".join(parts)}</svg>'
