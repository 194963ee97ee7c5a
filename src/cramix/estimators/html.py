"""Estimators in notebooks: scikit-learn's diagram, and of fitted ones what they have learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cramix.fitting import html
from cramix.fitting.result import FitResult
from cramix.markup import COLORS, Picture, card, drawable, number, table

# Longer curves are thinned out.
_MOST_POINTS = 400


class FittedHTML:
    """A base of estimators, before scikit-learn's, that adds a summary to the diagram of a fitted one.

    An estimator has a method `_summary`, which returns the HTML of what was learned.
    """

    def _summary(self) -> str:
        raise NotImplementedError

    def _repr_html_inner(self) -> str:
        from sklearn.utils import estimator_html_repr

        diagram = estimator_html_repr(self)
        return f"{diagram}{self._summary()}" if _is_fitted(self) else diagram

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        bundle = super()._repr_mimebundle_(**kwargs)  # type: ignore[misc]
        if "text/html" in bundle:  # not if scikit-learn is set to show text
            bundle["text/html"] = self._repr_html_inner()
        return bundle


def of_mixture(result: FitResult, names: Sequence[str] | None) -> str:
    """Return the summary of a fitted mixture."""
    return html.of_result(result, names, title="Fitted")


def of_regressor(n_features: int, facts: Mapping[str, str], losses: Sequence[float] = (), unit: str = "") -> str:
    """Return the summary of a fitted regressor: facts, and if it was trained in steps its losses over these."""
    rows = [("features", str(n_features)), *facts.items()]
    if losses:
        rows += [(f"{unit}s", str(len(losses))), ("last loss", number(losses[-1]))]
    return card("Fitted", _curve(losses, unit), table((), rows))


def _is_fitted(estimator: Any) -> bool:
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    try:
        check_is_fitted(estimator)
    except NotFittedError:
        return False
    return True


def _curve(losses: Sequence[float], unit: str) -> str:
    """Return the loss over the steps, from 1; nothing if there are none."""
    if not drawable(losses):
        return ""
    every = -(-len(losses) // _MOST_POINTS)
    steps = sorted({*range(0, len(losses), every), len(losses) - 1})
    picture = Picture((1, len(losses)), losses, f"loss over {unit}s", (unit, "loss"), whole=True)
    picture.line([i + 1 for i in steps], [losses[i] for i in steps], COLORS[0])
    return picture.svg()
