"""HTML for notebooks: tables and small SVG pictures, without scripts, style sheets or network access.

Text and axes have the colour of the surrounding text, and curves have colours of medium brightness, so that both can be
read on light and on dark pages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

# Of curves and swatches; contrast with white and with black is at least 3.
COLORS = ("#3f7fd0", "#d1603d", "#3d9a50", "#a765c2", "#b5852a", "#2f9aa0")
_WIDTH, _HEIGHT = 330, 190
# Room for numbers and labels: left, right, top, bottom.
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 10, 36
_CELL = "padding:2px 8px;white-space:nowrap;text-align:"
# Larger numbers overflow in differences.
_LARGEST = 1e150


def number(x: float) -> str:
    """Return a number with four digits."""
    return f"{x:.4g}"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, such as 1 row or 2,000 rows."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def more(*left_out: tuple[int, str]) -> str:
    """Return what is not shown, such as "and 2 columns more", from counts and nouns; nothing if all counts are 0."""
    parts = [counted(count, noun) for count, noun in left_out if count]
    return f"and {' and '.join(parts)} more" if parts else ""


def card(title: str, *blocks: str) -> str:
    """Return blocks of HTML side by side, as far as there is room, below a title."""
    style = "margin:0 16px 8px 0;max-width:100%;overflow-x:auto"
    inner = "".join(f'<div style="{style}">{block}</div>' for block in blocks if block)
    return (
        f'<div style="margin:4px 0"><div style="margin-bottom:4px"><b>{escape(title)}</b></div>'
        f'<div style="display:flex;flex-wrap:wrap;align-items:flex-start">{inner}</div></div>'
    )


def note(text: str) -> str:
    """Return a line of text."""
    return f'<div style="max-width:36em">{escape(text)}</div>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, colors: Sequence[str] = (), left_out: str = "") -> str:
    """Return a table.

    Args:
        head: a title for each column; none for a table of names and values.
        rows: a text for each cell.
        colors: of the swatches in front of the first rows.
        left_out: what the table does not show, in words.
    """
    parts = [_row("th", head, "right")] if head else []
    first = "right" if head else "left"
    parts += [_row("td", row, first, colors[i] if i < len(colors) else None) for i, row in enumerate(rows)]
    end = f'<div style="opacity:0.7">{escape(left_out)}</div>' if left_out else ""
    return f'<table style="margin:0;border-collapse:collapse">{"".join(parts)}</table>{end}'


def _row(tag: str, cells: Sequence[str], first: str, color: str | None = None) -> str:
    """Return a row of cells, the first of which is aligned to a side and may have a swatch."""
    box = f"display:inline-block;width:0.7em;height:0.7em;margin-right:5px;background:{color}"
    swatch = f'<span style="{box}"></span>' if color else ""
    inner = "".join(
        f'<{tag} style="{_CELL}{"right" if i else first}">{"" if i else swatch}{escape(cell)}</{tag}>'
        for i, cell in enumerate(cells)
    )
    return f"<tr>{inner}</tr>"


class Picture:
    """Curves, dots and bars in a frame with two labelled axes.

    Args:
        x: numbers that the horizontal axis shall cover.
        y: numbers that the vertical axis shall cover.
        about: what the picture shows, for readers who cannot see it.
        labels: of the horizontal and of the vertical axis.
        whole: whether the horizontal axis counts, so that its ticks are whole numbers.
    """

    def __init__(
        self, x: Iterable[float], y: Iterable[float], about: str, labels: tuple[str, str], *, whole: bool = False
    ) -> None:
        self._x, self._y, self._about, self._labels = _range(x), _range(y), about, labels
        self._least_step = 1.0 if whole else 0.0
        self._shapes: list[str] = []

    def line(
        self,
        x: Iterable[float],
        y: Iterable[float],
        color: str = "currentColor",
        *,
        closed: bool = False,
        faint: bool = False,
    ) -> None:
        """Draw a curve through points; a closed one is filled lightly, unless it is faint."""
        points = " L".join(self._at(a, b) for a, b in zip(x, y, strict=True))
        fill = f'fill="{color}" fill-opacity="0.12"' if closed and not faint else 'fill="none"'
        width = 'stroke-width="0.7" stroke-opacity="0.5"' if faint else 'stroke-width="1.5"'
        self._shapes.append(f'<path d="M{points}{" Z" if closed else ""}" {fill} stroke="{color}" {width}/>')

    def dot(self, x: float, y: float, color: str = "currentColor", radius: float = 2.5) -> None:
        """Draw a dot at a point."""
        a, b = self._at(x, y).split(" ")
        self._shapes.append(f'<circle cx="{a}" cy="{b}" r="{radius:g}" fill="{color}"/>')

    def bar(self, x: float, height: float, width: float, color: str = "currentColor") -> None:
        """Draw a bar around x, from 0 to its height."""
        left, right = x - width / 2, x + width / 2
        points = " L".join(self._at(*corner) for corner in ((left, 0.0), (left, height), (right, height), (right, 0.0)))
        self._shapes.append(f'<path d="M{points} Z" fill="{color}"/>')

    def svg(self) -> str:
        """Return the picture."""
        right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
        frame = f'<path d="M{_LEFT} {_TOP} V{bottom} H{right}" fill="none" stroke="currentColor" stroke-opacity="0.5"/>'
        texts = [_text(self._across(t), bottom + 14, label) for t, label in _ticks(*self._x, self._least_step)]
        texts += [_text(_LEFT - 5, self._down(t) + 3.5, label, "end") for t, label in _ticks(*self._y)]
        texts += [_text((_LEFT + right) / 2, _HEIGHT - 5, self._labels[0])]
        middle = (_TOP + bottom) / 2
        texts += [_text(10, middle, self._labels[1], turn=f' transform="rotate(-90 10 {middle:g})"')]
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
            f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(self._about)}" '
            f'style="max-width:100%" font-size="10" font-family="sans-serif">'
            f"<title>{escape(self._about)}</title>{frame}{''.join(texts)}{''.join(self._shapes)}</svg>"
        )

    def _at(self, x: float, y: float) -> str:
        return f"{self._across(x):.2f} {self._down(y):.2f}"

    def _across(self, x: float) -> float:
        low, high = self._x
        return _LEFT + (x - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def _down(self, y: float) -> float:
        low, high = self._y
        return _HEIGHT - _BOTTOM - (y - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)


def drawable(*values: Iterable[float]) -> bool:
    """Return whether there are numbers, and all are finite and small enough to draw."""
    numbers = [x for some in values for x in some]
    return bool(numbers) and all(abs(x) < _LARGEST for x in numbers)  # False for NaN


def _range(values: Iterable[float]) -> tuple[float, float]:
    """Return the least and the largest number, or a wider range around one number."""
    numbers = list(values)
    low, high = min(numbers), max(numbers)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        room = 0.1 * abs(low) or 0.5
        return low - room, high + room
    return low, high


def _ticks(low: float, high: float, least_step: float = 0.0) -> list[tuple[float, str]]:
    """Return round numbers in a range with their texts: two to six, unless steps must be larger."""
    raw = max((high - low) / 5, least_step)
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    size = max(abs(low), abs(high)) / step
    digits = max(4, math.ceil(math.log10(max(size, 1))) + 2)
    return [(i * step, f"{i * step:.{digits}g}") for i in range(first, last + 1)]


def _text(x: float, y: float, text: str, anchor: str = "middle", turn: str = "") -> str:
    if not text:
        return ""
    return f'<text x="{x:.2f}" y="{y:.2f}" text-anchor="{anchor}" fill="currentColor"{turn}>{escape(text)}</text>'
