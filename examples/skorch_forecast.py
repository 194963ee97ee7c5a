"""A network of your own with a mixture on top, in scikit-learn's searches and pipelines by skorch.

    pip install 'cramix[examples]'
    python examples/skorch_forecast.py

For a ready one see `cramix.MixtureRegressor`.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNet
from torch import Tensor, nn

from cramix import CramerLoss, MixtureHead, NormalMixture, crps


class Network(nn.Module):
    """Two layers and a `MixtureHead`, which starts from some targets."""

    def __init__(self, targets: Tensor, width: int = 32, k: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.head = MixtureHead(width, k, targets=targets)

    def forward(self, x: Tensor) -> NormalMixture:
        """Return the prediction."""
        return self.head(self.body(x))


class Forecaster(NeuralNet):
    """A network of mixtures: predictions are mixtures, and the score is minus the CRPS."""

    def predict_dist(self, X: np.ndarray) -> NormalMixture:
        """Return mixtures with batch shape `(n,)`."""
        parts = list(self.forward_iter(X))
        weights, means, scales = (
            torch.cat([getattr(p, name) for p in parts]) for name in ("weights", "means", "scales")
        )
        return NormalMixture(weights, means, scales)

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return the means, `(n,)`."""
        return self.predict_dist(X).mean.numpy()

    def score(self, X: np.ndarray, y: np.ndarray) -> float:
        """Return minus the mean CRPS: the higher the better."""
        return -crps(self.predict_dist(X), torch.as_tensor(y)).mean().item()


def main(epochs: int = 30) -> GridSearchCV:
    """Search for a width and a number of components."""
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
    return GridSearchCV(net, {"module__k": [1, 3]}, cv=2).fit(x[:, None], y)


if __name__ == "__main__":
    search = main()
    print(search.best_params_, f"CRPS {-search.best_score_:.4f}")
