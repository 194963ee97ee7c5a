"""Your own network with a mixture on top, in searches and pipelines of scikit-learn, through skorch.

    pip install 'cramix[sklearn]' skorch
    python examples/skorch_forecast.py

For a ready-made regressor see `cramix.MixtureRegressor`.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNet
from torch import Tensor, nn

from cramix import CramerLoss, MixtureHead, NormalMixture
from cramix.estimators import crps_scorer


class Network(nn.Module):
    """Two layers and a `MixtureHead`, initialized from a sample of the targets."""

    def __init__(self, targets: Tensor, width: int = 32, n_components: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.head = MixtureHead(width, n_components, targets=targets)

    def forward(self, x: Tensor) -> NormalMixture:
        """Return the predictions."""
        return self.head(self.body(x))


class Forecaster(NeuralNet):
    """A network whose predictions are mixtures."""

    def predict_dist(self, X: np.ndarray) -> NormalMixture:
        """Return mixtures with batch shape `(n,)`."""
        return NormalMixture.cat(list(self.forward_iter(X)))

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return the means, `(n,)`."""
        return self.predict_dist(X).mean.numpy()


def main(epochs: int = 30) -> GridSearchCV:
    """Search for the number of components with the lowest CRPS."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, 900).astype(np.float32)
    y = (rng.choice([-1, 1], 900) * x + rng.normal(0, 0.1, 900)).astype(np.float32)
    torch.manual_seed(0)
    net = Forecaster(
        Network,
        module__targets=torch.from_numpy(y),
        criterion=CramerLoss,
        optimizer=torch.optim.Adam,
        lr=1e-2,
        max_epochs=epochs,
        batch_size=100,
        verbose=0,
    )
    grid = {"module__n_components": [1, 3]}
    return GridSearchCV(net, grid, scoring=crps_scorer, cv=2).fit(x[:, None], y)


if __name__ == "__main__":
    search = main()
    print(search.best_params_, f"CRPS {-search.best_score_:.4f}")
