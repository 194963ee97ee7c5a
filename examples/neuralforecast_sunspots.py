"""Neural forecasts of sunspots whose mixtures are trained by the exact CRPS, in neuralforecast.

    pip install 'cramix[plot]' neuralforecast statsmodels
    python examples/neuralforecast_sunspots.py

neuralforecast cuts the windows, scales them and trains the network; its `GMM` turns outputs into mixtures. Only the
loss is replaced: the likelihood by the Cramér loss, for one observation the CRPS. Prints scores for the last decades,
which no training window has seen, and draws a fan chart.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import statsmodels.api as sm
import torch
from neuralforecast import NeuralForecast
from neuralforecast.losses.pytorch import GMM
from neuralforecast.models import MLP
from torch import Tensor

from cramix import CramerLoss, NormalMixture, crps
from cramix.plot import fan_chart

HORIZON, WINDOW = 11, 44  # years: one cycle of the sun, from four
VALIDATION, HELD_OUT = 44, 58  # years for early stopping, then years for scores


class CramerMixture(GMM):
    """The mixtures of neuralforecast with weights, trained by the Cramér loss."""

    def __init__(self, n_components: int = 3) -> None:
        super().__init__(n_components, weighted=True, return_params=True)

    def scale_decouple(self, output: tuple, loc: Tensor, scale: Tensor, eps: float = 0.01) -> tuple:
        """Return means, scales and weights; the scales may be smaller than the likelihood would allow."""
        return super().scale_decouple(output, loc, scale, eps)

    def __call__(self, y: Tensor, distr_args: tuple, mask: Tensor | None = None) -> Tensor:
        """Return the mean loss of the observations that the mask keeps."""
        means, scales, weights = distr_args
        return CramerLoss()(NormalMixture(weights, means, scales), y, sample_weight=mask)


def sunspots() -> pd.DataFrame:
    """Return the yearly numbers of sunspots since 1700, as neuralforecast wants them."""
    data = sm.datasets.sunspots.load_pandas().data
    dates = pd.PeriodIndex(data["YEAR"].astype(int).astype(str), freq="Y").to_timestamp()
    return pd.DataFrame({"unique_id": "sun", "ds": dates, "y": data["SUNACTIVITY"]})


def mixtures(forecasts: pd.DataFrame, model: str = "MLP") -> NormalMixture:
    """Return the forecasts, one mixture for each row."""
    parts = [
        torch.from_numpy(forecasts.filter(regex=rf"^{model}-{name}-\d+$").to_numpy(dtype=np.float64))
        for name in ("weight", "mu", "std")
    ]
    parts[0] = parts[0] / parts[0].sum(-1, keepdim=True)  # float32 weights
    return NormalMixture(*parts)


def forecast(steps: int = 300) -> pd.DataFrame:
    """Train on the first years, stop when later ones get no better, and forecast from each of the last."""
    model = MLP(
        h=HORIZON,
        input_size=WINDOW,
        hidden_size=64,
        windows_batch_size=64,
        loss=CramerMixture(),
        scaler_type="standard",
        max_steps=steps,
        val_check_steps=20,
        early_stop_patience_steps=3,
        learning_rate=1e-3,
        random_seed=0,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
        accelerator="cpu",
    )
    learner = NeuralForecast([model], freq="YS")
    return learner.cross_validation(sunspots(), n_windows=HELD_OUT - HORIZON + 1, step_size=1, val_size=VALIDATION)


def scores(forecasts: pd.DataFrame) -> dict[str, float]:
    """Return the CRPS of the forecasts, that of all earlier years as one forecast, and how many 80 % intervals hold."""
    p, y = mixtures(forecasts), torch.from_numpy(forecasts["y"].to_numpy(dtype=np.float64))
    earlier = torch.from_numpy(sunspots()["y"].to_numpy(dtype=np.float64)[:-HELD_OUT])
    level = p.cdf(y)
    return {
        "crps": crps(p, y).mean().item(),
        "crps of the past": crps(NormalMixture.from_samples(earlier), y).mean().item(),
        "inside 80 %": ((level > 0.1) & (level < 0.9)).double().mean().item(),
    }


def picture(forecasts: pd.DataFrame) -> object:
    """Draw the last window over the years before it."""
    last = forecasts[forecasts["cutoff"] == forecasts["cutoff"].max()]
    years = torch.tensor(last["ds"].dt.year.to_numpy(), dtype=torch.float64)
    data = sunspots().iloc[-HORIZON - WINDOW :].assign(year=lambda d: d["ds"].dt.year)
    seen = (torch.tensor(data[name].to_numpy(dtype=np.float64)) for name in ("year", "y"))
    return fan_chart(years, mixtures(last), tuple(seen), names=("year", "sunspots"))


if __name__ == "__main__":
    found = forecast()
    print({name: round(value, 2) for name, value in scores(found).items()})
    picture(found).savefig("sunspots.png")
