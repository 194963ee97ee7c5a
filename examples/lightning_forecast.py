"""A mixture on top of a network in Lightning: the Cramér loss first, the likelihood last, with metrics.

pip install 'cramix[examples]'
python examples/lightning_forecast.py
"""

from __future__ import annotations

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from cramix import BlendedLoss, MixtureHead, NormalMixture
from cramix.metrics import CRPS, Calibration


def data(n: int, seed: int) -> TensorDataset:
    """Two branches that cross, `y = x` or `y = -x`, with noise."""
    g = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(n, 1, generator=g) - 1
    sign = torch.where(torch.rand(n, generator=g) < 0.5, -1.0, 1.0)
    return TensorDataset(x, sign * x[:, 0] + 0.1 * torch.randn(n, generator=g))


class Forecaster(L.LightningModule):
    """A network with a `MixtureHead`, whose start comes from a sample of the targets."""

    def __init__(self, targets: Tensor, steps: int) -> None:
        super().__init__()
        body = nn.Sequential(nn.Linear(1, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.network = nn.Sequential(body, MixtureHead(64, k=3, targets=targets))
        self.loss = BlendedLoss(steps, unit=targets.std().item())
        self.crps, self.calibration = CRPS(), Calibration()

    def forward(self, x: Tensor) -> NormalMixture:
        """Return the prediction."""
        return self.network(x)

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        """Return the loss of a batch."""
        x, y = batch
        loss = self.loss(self(x), y)
        self.log("likelihood_share", self.loss.share)
        return loss

    def on_train_batch_end(self, *_: object) -> None:
        """Go on with the schedule of the blend."""
        self.loss.step()

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        """Count a batch."""
        x, y = batch
        p = self(x)
        self.crps.update(p, y)
        self.calibration.update(p, y)

    def on_validation_epoch_end(self) -> None:
        """Log the score and the error of calibration, over all processes."""
        self.log("crps", self.crps.compute())
        self.log("calibration_error", self.calibration.compute()["error"])
        self.crps.reset()
        self.calibration.reset()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), 3e-3)


def main(epochs: int = 30) -> dict[str, float]:
    """Train, and return what was logged last."""
    L.seed_everything(0, verbose=False)
    train, held = data(2000, seed=0), data(500, seed=1)
    batches = DataLoader(train, batch_size=100, shuffle=True)
    model = Forecaster(train.tensors[1], steps=epochs * len(batches))
    trainer = L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, batches, DataLoader(held, batch_size=100))
    return {name: value.item() for name, value in trainer.callback_metrics.items()}


if __name__ == "__main__":
    print(main())
