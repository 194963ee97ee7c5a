"""Fitted `CramerMixture`s in files: safetensors, which hold numbers and words and never code."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cramix.estimators.incremental import Incremental
from cramix.estimators.inputs import Form
from cramix.fitting.problem import Units
from cramix.fitting.result import FitResult, Step
from cramix.fitting.stepwise import Stepwise
from cramix.mixture import MultivariateNormalMixture
from cramix.mixture.coordinates import in_coordinates
from cramix.mixture.covariance import FAMILIES, KINDS
from cramix.tensor_files import read_tensors, write_tensors

_FORMAT = "model 1"


def save(model: Any, path: str | os.PathLike) -> None:
    """Write a fitted model to a file; what was there before stays whole until the new file is."""
    mixture = in_coordinates(model.result_.mixture)
    tensors = {
        "weights": mixture.weights,
        "means": mixture.means,
        "covariances": mixture.covariance_kind.values,
    }
    state = model._incremental
    tensors |= {} if state is None else _state_tensors(state)
    result = {f.name: getattr(model.result_, f.name) for f in fields(FitResult) if f.name not in ("mixture", "history")}
    metadata = {
        "cramix": _FORMAT,
        "parameters": json.dumps({name: _plain(name, value) for name, value in model.get_params(deep=False).items()}),
        "result": json.dumps(result),
        "history": json.dumps([list(asdict(step).values()) for step in model.history_]),
        "form": json.dumps([model._form.numpy, str(model._form.dtype).removeprefix("torch.")]),
        "features": json.dumps([model.n_features_in_, list(getattr(model, "feature_names_in_", [])) or None]),
        "incremental": json.dumps(None if state is None else [state.fit.weight, state.n_rows, state.searched]),
        "weight": json.dumps(model._weight),
    }
    write_tensors(path, tensors, metadata)


def load(kind: type, path: str | os.PathLike) -> Any:
    """Read a model of a class from a file that `save` has written."""
    metadata, tensors = _content(path)
    parameters = {name: _array(value) for name, value in json.loads(metadata["parameters"]).items()}
    model = kind(**parameters)
    mixture = MultivariateNormalMixture(
        tensors["weights"], tensors["means"], KINDS[model.covariance_type](tensors["covariances"]), validate_args=True
    )
    history = tuple(Step(*values) for values in json.loads(metadata["history"]))
    found: dict[str, Any] = json.loads(metadata["result"])
    found |= {name: tuple(x) for name, x in found.items() if isinstance(x, list)}
    numpy, dtype = json.loads(metadata["form"])
    model.n_features_in_, names = json.loads(metadata["features"])
    if names is not None:
        model.feature_names_in_ = np.asarray(names, dtype=object)
    form = Form(numpy, getattr(torch, dtype), torch.device("cpu"))
    result = FitResult(mixture=mixture, history=history, **found)
    model._keep(result, form, json.loads(metadata["weight"]), _state(model, metadata, tensors))
    return model


def _state_tensors(state: Incremental) -> dict[str, Tensor]:
    fit = state.fit
    assert fit is not None
    floor = torch.as_tensor(fit.family.floor, dtype=torch.float64)
    tensors = {"sums": fit.sums, "centre": fit.units.centre, "scale": fit.units.scale, "floor": floor.reshape(-1)}
    if state.kept is not None and state.weights is not None:
        tensors |= {"kept": state.kept, "kept_weights": state.weights}
    return tensors


def _state(model: Any, metadata: dict[str, str], tensors: dict[str, Tensor]) -> Incremental | None:
    numbers = json.loads(metadata["incremental"])
    if numbers is None:
        return None
    (weight, n_rows, searched), floor = numbers, tensors["floor"]
    family = FAMILIES[model.covariance_type](model.n_features_in_, floor.item() if len(floor) == 1 else floor)
    fit = Stepwise(family, Units(tensors["centre"], tensors["scale"]), tensors["sums"], weight)
    return Incremental(fit, n_rows, tensors.get("kept"), tensors.get("kept_weights"), searched)


def _plain(name: str, value: Any) -> Any:
    """Return a parameter as JSON can hold it."""
    if isinstance(value, np.ndarray | Tensor):
        value = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)
        return {"array": value.tolist(), "dtype": str(value.dtype)}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if value is None or isinstance(value, bool | int | float | str | list | tuple):
        return value
    raise ValueError(f"{name} must be a number, a name or an array to save a model; got {type(value).__name__}.")


def _array(value: Any) -> Any:
    return np.asarray(value["array"], dtype=value["dtype"]) if isinstance(value, dict) and "array" in value else value


def _content(path: str | os.PathLike) -> tuple[dict[str, str], dict[str, Tensor]]:
    metadata, tensors = read_tensors(path)
    if metadata.get("cramix") != _FORMAT:
        found = metadata.get("cramix", "none")
        raise ValueError(f"{path} must hold a {_FORMAT!r}; got {found!r}. For mixtures see cramix.load.")
    return metadata, tensors
