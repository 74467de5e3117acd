"""Bar and line charts as SVG, for Markdown in the Dagster UI."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

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
    largest = max((each.value for each in bars), default=0) or 1
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
