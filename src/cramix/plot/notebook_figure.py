"""Figures that notebooks show; imported where matplotlib is used."""

from __future__ import annotations

from io import BytesIO

from matplotlib import figure


class Figure(figure.Figure):
    """matplotlib's figure, which notebooks show by themselves only after pyplot was imported."""

    def _repr_png_(self) -> bytes:
        file = BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()
