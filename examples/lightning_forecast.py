"""A mixture on top of a network in Lightning: the Cramér loss first, the likelihood last, with metrics.

    pip install 'cramix[sklearn,metrics]' lightning
    python examples/lightning_forecast.py

Prints the CRPS and the calibration error on held-out data.
"""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from cramix import BlendedLoss, MixtureHead, NormalMixture
from cramix.metrics import CRPS, Calibration


def data(n: int, seed: int) -> TensorDataset:
    """Return two branches that cross, `y = x` or `y = -x`, with noise."""
    g = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(n, 1, generator=g) - 1
    sign = torch.where(torch.rand(n, generator=g) < 0.5, -1.0, 1.0)
    return TensorDataset(x, sign * x[:, 0] + 0.1 * torch.randn(n, generator=g))


class Forecaster(L.LightningModule):
    """A network with a `MixtureHead`, initialized from a sample of the targets."""

    def __init__(self, targets: Tensor, steps: int) -> None:
        super().__init__()
        body = nn.Sequential(nn.Linear(1, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.network = nn.Sequential(body, MixtureHead(64, n_components=3, targets=targets))
        self.loss = BlendedLoss(steps, unit=targets.std().item())
        self.steps = steps
        self.crps, self.calibration = CRPS(), Calibration()

    def forward(self, x: Tensor) -> NormalMixture:
        """Return the predictions."""
        return self.network(x)

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        """Return the loss of a batch."""
        x, y = batch
        loss = self.loss(self(x), y)
        self.log("likelihood_share", self.loss.share)
        return loss

    def on_train_batch_end(self, *_: object) -> None:
        """Advance the schedule of the blend."""
        self.loss.step()

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        """Update the metrics."""
        x, y = batch
        p = self(x)
        self.crps.update(p, y)
        self.calibration.update(p, y)

    def on_validation_epoch_end(self) -> None:
        """Log the metrics over all processes."""
        self.log("crps", self.crps.compute())
        self.log("calibration_error", self.calibration.compute()["error"])
        self.crps.reset()
        self.calibration.reset()

    def configure_optimizers(self) -> Any:
        """Return Adam with a learning rate that decays to zero; at a constant rate calibration keeps fluctuating."""
        optimizer = torch.optim.Adam(self.parameters(), 1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main(epochs: int = 30) -> dict[str, float]:
    """Train, and return the last values that were logged."""
    L.seed_everything(0, verbose=False)
    train, held_out = data(2000, seed=0), data(2000, seed=1)
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
    trainer.fit(model, batches, DataLoader(held_out, batch_size=1000))
    return {name: value.item() for name, value in trainer.callback_metrics.items()}


if __name__ == "__main__":
    print(main())
