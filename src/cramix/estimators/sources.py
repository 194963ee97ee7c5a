"""What a `CramerMixture` does with a source: fits and scores in passes, and the columns of both."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from cramix.arrays import to_numpy
from cramix.data import Source, source
from cramix.estimators.initial_parameters import read_given
from cramix.estimators.inputs import Form
from cramix.estimators.methods import chosen_method
from cramix.estimators.per_sample import total_likelihood
from cramix.fitting import FitResult
from cramix.fitting.reading import InMemory, read
from cramix.mixture.coordinates import in_coordinates


def fit(model: Any, rows: Source, form: Form | None = None) -> FitResult:
    """Fit a model to a source: to an array where a sample holds all its rows, else in passes.

    Args:
        model: a `CramerMixture`, which keeps the result.
        rows: of the data.
        form: of an array that they are from, whose columns the model knows; None for other sources.
    """
    method, _ = chosen_method(model, None)
    options = model._options(torch.device("cpu"))
    reading = read(rows, method, options, [model.n_components], model.max_passes, model.checkpoint)
    if isinstance(reading, InMemory):
        x = reading.X if reading.X.ndim == 2 else reading.X.unsqueeze(-1)
        result = model._fit_rows(to_numpy(x), reading.options.sample_weight, passes=False)
        model.result_ = replace(result, passes=reading.passes, n_bad=reading.n_bad)
        _name_features(model, rows)
        return model.result_
    x = reading.rows.rows
    start, options = model._start(x, read_given(model, x), reading.options)
    method, _ = chosen_method(model, start)
    reading = replace(reading, method=method, options=replace(options, init_params=start))  # type: ignore[arg-type]
    problem = reading.prepare(model.n_components)
    with torch.no_grad():
        (result,) = reading.conclude([problem], [method.run(problem)])
    result = replace(result, mixture=in_coordinates(result.mixture.to(dtype=torch.float64)))
    if form is None:
        _name_features(model, rows)
    model._keep(result, form or Form(True, rows.dtype, torch.device("cpu")), reading.survey.weight)
    return result


def of_model(model: Any, X: Any, sample_weight: Any = None) -> Source:
    """Return a source that has the columns of the data that a model was fitted to."""
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(model)
    rows = source(X, sample_weight=sample_weight)
    names = getattr(model, "feature_names_in_", None)
    if rows.dim != model.n_features_in_ or (
        names is not None and rows.columns is not None and tuple(names) != rows.columns
    ):
        listed = ", ".join(rows.columns) if rows.columns else f"{rows.dim}"
        wanted = ", ".join(names) if names is not None else f"{model.n_features_in_}"
        raise ValueError(f"X must have the columns of the fit, {wanted}; got {listed}. See cramix.source.")
    return rows


def likelihood(model: Any, X: Any, sample_weight: Any) -> tuple[float, float]:
    """Return the mean log likelihood of the rows of a source, and their weight, in one pass."""
    total = of_model(model, X, sample_weight).sum(partial(total_likelihood, model._mixture()))
    return total.log_likelihood / total.weight, total.weight


def _name_features(model: Any, rows: Source) -> None:
    """Store the number and the names of the columns, as scikit-learn does for data frames."""
    model.n_features_in_ = rows.dim
    if rows.columns is not None:
        model.feature_names_in_ = np.asarray(rows.columns, dtype=object)
    elif hasattr(model, "feature_names_in_"):
        del model.feature_names_in_
