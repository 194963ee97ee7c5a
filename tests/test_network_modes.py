"""Networks of mixtures in every mode of torch: export, ONNX, processes, autocast, compiler, checkpoints, transforms."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cramix import (
    BlendedLoss,
    CramerLoss,
    EnergyScoreLoss,
    MixtureHead,
    MixtureNLLLoss,
    MixtureTensors,
    SlicedCramerLoss,
)
from tests.processes import in_two

KINDS = ["diag", "full", "spherical", "low_rank"]
# A head's settings, and a loss that its mixtures can have.
CASES = [
    pytest.param(1, "diag", CramerLoss(), id="line-cramer"),
    pytest.param(1, "diag", EnergyScoreLoss(), id="line-energy"),
    pytest.param(1, "diag", MixtureNLLLoss(), id="line-nll"),
    pytest.param(1, "diag", BlendedLoss(2, lambda part: 0.4), id="line-blend"),
    pytest.param(2, "diag", EnergyScoreLoss(), id="diag-energy"),
    pytest.param(2, "full", SlicedCramerLoss(), id="full-sliced"),
    pytest.param(2, "full", SlicedCramerLoss(directions=torch.eye(2, dtype=torch.float64)), id="full-slices"),
    pytest.param(2, "spherical", BlendedLoss(2, lambda part: 0.4), id="spherical-blend"),
    pytest.param(2, "low_rank", MixtureNLLLoss(), id="low_rank-nll"),
]


def network(dim: int, covariance: str, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    head = MixtureHead(8, 3, dim, covariance, targets=data(dim)[1])
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), head).to(dtype)


def data(dim: int, rows: int = 6) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    x = torch.randn(rows, 4, generator=g, dtype=torch.float64)
    return x, 3 + 2 * torch.randn((rows,) if dim == 1 else (rows, dim), generator=g, dtype=torch.float64)


def plain(net: nn.Module, loss: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    value = loss(net(x), y)
    gradients = torch.autograd.grad(value, list(net.parameters()))
    return value, dict(zip([name for name, _ in net.named_parameters()], gradients, strict=True))


@pytest.mark.parametrize(("dim", "covariance", "loss"), CASES)
@pytest.mark.slow
def test_compiles_as_one_graph(dim: int, covariance: str, loss: nn.Module) -> None:
    torch._dynamo.reset()  # only so many graphs of one function are kept
    net, (x, y) = network(dim, covariance), data(dim)
    compiled = torch.compile(lambda x, y: loss(net(x), y), fullgraph=True, backend="aot_eager")
    value, gradients = plain(net, loss, x, y)
    torch.testing.assert_close(compiled(x, y), value)
    for got, expected in zip(
        torch.autograd.grad(compiled(x, y), list(net.parameters())), gradients.values(), strict=True
    ):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(("dim", "covariance", "loss"), CASES)
def test_function_transforms(dim: int, covariance: str, loss: nn.Module) -> None:
    """Gradients by `torch.func.grad`, and one for each sample by `vmap` of it, whose mean is the gradient."""
    net, (x, y) = network(dim, covariance), data(dim)
    parameters = {name: p.detach() for name, p in net.named_parameters()}

    def of(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return loss(torch.func.functional_call(net, parameters, (x,)), y)

    value, gradients = plain(net, loss, x, y)
    torch.testing.assert_close(of(parameters, x, y), value)
    whole = torch.func.grad(of)(parameters, x, y)
    each = torch.func.vmap(torch.func.grad(of), in_dims=(None, 0, 0))(parameters, x, y)
    for name, expected in gradients.items():
        torch.testing.assert_close(whole[name], expected, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(each[name].mean(0), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize(("dim", "covariance", "loss"), CASES)
def test_checkpoints(dim: int, covariance: str, loss: nn.Module, reentrant: bool) -> None:
    net, (x, y) = network(dim, covariance), data(dim)
    value, gradients = plain(net, loss, x, y)
    saved = checkpoint(lambda x: loss(net(x), y), x.clone().requires_grad_(), use_reentrant=reentrant)
    torch.testing.assert_close(saved, value)
    saved.backward()
    for name, p in net.named_parameters():
        torch.testing.assert_close(p.grad, gradients[name])


@pytest.mark.parametrize("covariance", KINDS)
def test_a_checkpoint_may_hold_the_mixture(covariance: str) -> None:
    net, (x, y) = network(2, covariance), data(2)
    _, gradients = plain(net, EnergyScoreLoss(), x, y)
    EnergyScoreLoss()(checkpoint(net, x, use_reentrant=False), y).backward()
    for name, p in net.named_parameters():
        torch.testing.assert_close(p.grad, gradients[name])


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("dim", "covariance", "loss"), CASES)
def test_autocast(dim: int, covariance: str, loss: nn.Module, half: torch.dtype) -> None:
    """The body runs in half precision; mixtures and losses stay in single."""
    single = loss.float() if isinstance(loss, SlicedCramerLoss) else loss
    net = network(dim, covariance, torch.float32)
    x, y = (t.float() for t in data(dim))
    with torch.autocast("cpu", half):
        assert net[0](x).dtype == half
        p = net(x)
        assert p.means.dtype == torch.float32
        value = single(p, y)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, single(net(x), y), rtol=0.03, atol=0.03)
    value.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    loss.double()


@pytest.mark.parametrize(("dim", "covariance"), [(1, "diag"), *((3, kind) for kind in KINDS)])
def test_exports(dim: int, covariance: str) -> None:
    net = MixtureTensors(network(dim, covariance, torch.float32))
    x = data(dim)[0].float()
    rows = torch.export.Dim("rows")
    program = torch.export.export(net, (x,), dynamic_shapes={"x": {0: rows}})
    stored = io.BytesIO()
    torch.export.save(program, stored)
    stored.seek(0)
    loaded = torch.export.load(stored).module()
    other = data(dim, rows=11)[0].float()
    for got, expected in zip(loaded(other), net(other), strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # of the exporter, about itself
@pytest.mark.parametrize(("dim", "covariance"), [(1, "diag"), *((3, kind) for kind in KINDS)])
def test_onnx_computes_the_same(dim: int, covariance: str, tmp_path: Path) -> None:
    import onnxruntime

    net = MixtureTensors(network(dim, covariance, torch.float32)).eval()
    x = data(dim)[0].float()
    path = tmp_path / "network.onnx"
    torch.onnx.export(
        net, (x,), path, dynamo=True, verbose=False, input_names=["x"], output_names=["weights", "means", "spread"],
        dynamic_shapes={"x": {0: torch.export.Dim("rows")}},
    )  # fmt: skip
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    other = data(dim, rows=11)[0].float()
    got = session.run(["weights", "means", "spread"], {"x": other.numpy()})
    for ours, theirs in zip(net(other), got, strict=True):
        np.testing.assert_allclose(theirs, ours.detach(), rtol=1e-5, atol=1e-5)


_PROCESS = """
import sys, torch, torch.distributed as dist
from torch import nn
from cramix import BlendedLoss, CramerLoss, EnergyScoreLoss, MixtureHead, MixtureNLLLoss, SlicedCramerLoss
rank, path = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=2)
g = torch.Generator().manual_seed(0)
x = torch.randn(8, 3, generator=g)

def network(dim, kind, y):
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), MixtureHead(5, 2, dim, kind, targets=y))

def train(net, called, loss, x, y):
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss(called(x), y).backward()
        optimizer.step()
        if isinstance(loss, BlendedLoss):
            loss.step()

for make, dim, kind in (
    (CramerLoss, 1, "diag"), (MixtureNLLLoss, 1, "diag"), (lambda: BlendedLoss(3), 1, "diag"),
    (EnergyScoreLoss, 2, "full"), (SlicedCramerLoss, 2, "low_rank"), (MixtureNLLLoss, 2, "spherical"),
):
    y = torch.randn(8, *([dim] if dim > 1 else []), generator=g)
    net, alone = network(dim, kind, y), network(dim, kind, y)
    train(net, nn.parallel.DistributedDataParallel(net), make(), x[rank::2], y[rank::2])
    train(alone, alone, make(), x, y)
    start = network(dim, kind, y)
    moved = max(float((a - b).abs().max()) for a, b in zip(start.parameters(), alone.parameters()))
    apart = max(float((a - b).abs().max()) for a, b in zip(net.parameters(), alone.parameters()))
    if rank == 0:
        print(apart / moved)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path: Path) -> None:
    """After three steps, each process with half of the rows, weights are those of one process with all of them."""
    apart = [float(line) for line in in_two(_PROCESS, tmp_path).split()]
    assert len(apart) == 6
    assert max(apart) < 1e-4
