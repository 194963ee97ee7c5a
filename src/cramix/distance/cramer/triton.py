"""The Cramér loss and its gradients on a GPU: one pass over the pairs, and no array in memory that has an axis of them.

There are three kinds of problems: batches of pairs of mixtures (`triton_batch`; `triton_lanes` for large batches of few
components), mixtures against many points each, and one mixture against each of many points (`triton_points`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from cramix.accelerator import cdiv, next_power_of_2
from cramix.distance.cramer.blocked import FEW_PAIRS, working_dtype
from cramix.distance.cramer.signature import Evaluation, Operand, Problem, batch_of
from cramix.distance.cramer.triton_batch import evaluate_batch
from cramix.distance.cramer.triton_lanes import evaluate_lanes
from cramix.distance.cramer.triton_points import finish, sum_over_points
from cramix.distance.cramer.triton_scores import evaluate_points, prepare
from cramix.torch_internals import plain_eager

# More atoms than this are points, which are visited in chunks.
_FEW_ATOMS = 32
# The most pairs that a lane visits, the least elements that fill a GPU with lanes, and lanes of a program.
_LANE, _LANES, _LANE_BLOCK = 36, 1 << 14, 64
# Pairs in a tile, and of a thread.
_TILE, _EACH = 64, 2
# Points of a block and of a chunk, points that are scored by a program, and components that a program visits.
_BLOCK, _CHUNK, _SCORES, _GROUPS = 256, 1 << 13, 512, {tl.float32: 8, tl.float64: 2}
_DTYPES = {torch.float32: tl.float32, torch.float64: tl.float64}


def evaluate(problem: Problem) -> Evaluation:
    """Evaluate losses and gradients; see `signature.Problem`. The kernels choose their blocks themselves."""
    if plain_eager():
        return _evaluate(problem)
    p, q, energy, grad_p, grad_q, _, each = problem
    losses, at_p, at_q = _operator([*p, *q, energy], grad_p, grad_q, each)
    return Evaluation(losses, at_p if grad_p else None, at_q if grad_q else None)


@torch.library.custom_op("cramix::cramer", mutates_args=())
def _operator(tensors: list[Tensor | None], grad_p: bool, grad_q: bool, each: float) -> list[Tensor]:
    """Hide the kernels from the compiler and from function transforms."""
    p, q = Operand(*tensors[:3]), Operand(*tensors[3:6])  # type: ignore[arg-type]
    found = _evaluate(Problem(p, q, tensors[6], grad_p, grad_q, None, each))
    return [p.means.new_empty(0) if x is None else x for x in found]


@_operator.register_fake
def _(tensors, grad_p, grad_q, each):
    p, q = Operand(*tensors[:3]), Operand(*tensors[3:6])
    found = _empty(Problem(p, q, tensors[6], grad_p, grad_q, None, each), batch_of(p, q))
    return [p.means.new_empty(0) if x is None else x for x in found]


def _empty(problem: Problem, batch: torch.Size) -> Evaluation:
    """Return an evaluation with arbitrary numbers."""
    p, q, _, grad_p, grad_q, *_ = problem
    like = p.means
    return Evaluation(
        like.new_empty(batch),
        like.new_empty((3, *batch, like.shape[-1])) if grad_p else None,
        like.new_empty((2 if q.scales is None else 3, *batch, q.means.shape[-1])) if grad_q else None,
    )


def _evaluate(problem: Problem) -> Evaluation:
    p, q, _, grad_p, *_ = problem
    batch = batch_of(p, q)
    out = _empty(problem, batch)
    if not batch.numel():
        return out
    m = q.means.shape[-1]
    with torch.cuda.device_of(out.losses):  # Triton launches on the current device
        if q.scales is None and m > _FEW_ATOMS:
            _against_points(problem, batch, out)
        elif q.scales is None and m == 1 and not grad_p and p.means.shape[:-1].numel() == 1:
            _against_each(problem, batch, out)
        else:
            _in_batches(problem, batch, out)
    return out


def _in_batches(problem: Problem, batch: torch.Size, out: Evaluation) -> None:
    """Evaluate pairs of mixtures, or of mixtures and a few atoms."""
    p, q, energy, _, _, _, each = problem
    rows, n, m = batch.numel(), p.means.shape[-1], q.means.shape[-1]
    (p_tensors, p_strides), (q_tensors, q_strides) = _flat(p, batch), _flat(q, batch)
    n_padded, m_padded = next_power_of_2(n), next_power_of_2(m)
    pairs, working = max(n_padded, m_padded) ** 2, working_dtype(p, q, batch)
    some = max(1, _TILE // pairs)
    if working == torch.float32 and rows >= _LANES and _pairs_of_lane(n, m, q.scales is None) <= _LANE:
        evaluate_lanes[(cdiv(rows, _LANE_BLOCK),)](
            *p_tensors, *q_tensors, *out, rows, each, *p_strides, *q_strides,
            n, m, n_padded, m_padded, some, _LANE_BLOCK, num_warps=_LANE_BLOCK // 32,
        )  # fmt: skip
        return
    energy, energy_stride = (None, 0) if energy is None or m == 1 else _rows(energy.unsqueeze(-1), batch)
    evaluate_batch[(cdiv(rows, some),)](
        *p_tensors, *q_tensors, energy, *out, rows, each, *p_strides, *q_strides, energy_stride,
        n, m, n_padded, m_padded, some, _DTYPES[working], working == torch.float32,
        num_warps=max(1, min(16, some * pairs // (32 * _EACH))),
    )  # fmt: skip


def _pairs_of_lane(n: int, m: int, atoms: bool) -> float:
    """Return how many pairs a lane visits; several atoms have a self energy, which lanes do not know."""
    if atoms and m > 1:
        return math.inf
    return n * m + n * (n + 1) // 2 + (0 if atoms else m * (m + 1) // 2)


def _against_each(problem: Problem, batch: torch.Size, out: Evaluation) -> None:
    """Evaluate one mixture against each of many points."""
    p, q, *_, each = problem
    points, stride = _rows(q.means, batch)
    rows, working = batch.numel(), working_dtype(p, q, batch)
    prepared = _prepared(*_flat(p, batch), 1, working)
    evaluate_points[(cdiv(rows, _SCORES), 1)](
        *prepared, points, None, None, out.losses, out.at_q, rows, each, 0, stride, 0, 0,
        p.means.shape[-1], _SCORES, _DTYPES[working], working == torch.float32,
    )  # fmt: skip


def _against_points(problem: Problem, batch: torch.Size, out: Evaluation) -> None:
    """Evaluate mixtures against many points each."""
    p, q, energy, _, _, _, each = problem
    assert energy is not None, "atoms come with their self energy"
    (weights, points, _), (weights_stride, points_stride, _) = _flat(q, batch)
    assert weights is not None
    assert points is not None
    one = points.stride(-1)
    given = None if _uniform(q.weights) else weights
    cloud = _Cloud(points, given, None, q.means.shape[-1], (points_stride, one, weights_stride, 1))
    _sum(p, cloud, energy, batch, working_dtype(p, q, batch), each, out)


def evaluate_projections(
    p: Operand, points: Tensor, weights: Tensor, directions: Tensor, energy: Tensor, grad_p: bool
) -> Evaluation:
    """Evaluate mixtures on t lines, `(t, k)`, against the projections of one set of points onto these lines.

    Args:
        p: the mixtures.
        points: `(n, d)`.
        weights: of the points, `(n,)`, with any positive sum.
        directions: unit vectors, `(t, d)`.
        energy: the self energy of the projected points, `(t,)` in float64.
        grad_p: whether to return gradients for p.
    """
    batch = p.means.shape[:-1]
    out = Evaluation(p.means.new_empty(batch), p.means.new_empty((3, *p.means.shape)) if grad_p else None, None)
    points = points if points.stride(-1) == 1 else points.contiguous()
    given = None if _uniform(weights) else weights.contiguous()
    cloud = _Cloud(points, given, directions.contiguous(), len(points), (0, points.stride(0), 0, 1))
    working = torch.float64 if p.means.numel() * len(points) <= FEW_PAIRS else torch.float32
    with torch.cuda.device_of(points):
        _sum(p, cloud, energy, batch, working, 1.0, out)
    return out


class _Cloud(NamedTuple):
    """Points of each batch element, or points `(n, d)` that are projected onto a direction for each of them."""

    points: Tensor
    weights: Tensor | None  # None if they are equal
    directions: Tensor | None
    n: int
    strides: tuple[int, int, int, int]  # of the points along batch and points, and of the weights


def _sum(
    p: Operand,
    cloud: _Cloud,
    energy: Tensor,
    batch: torch.Size,
    working: torch.dtype,
    each: float,
    out: Evaluation,
) -> None:
    """Evaluate mixtures against clouds; sums in float32 that lose too many digits are repeated in float64."""
    rows, k, float64 = batch.numel(), p.means.shape[-1], working == torch.float64
    (weights, means, scales), (weights_stride, means_stride, scales_stride) = _flat(p, batch)
    energy, energy_stride = _rows(energy.unsqueeze(-1), batch)
    chunks, padded = cdiv(cloud.n, _CHUNK), next_power_of_2(k)
    dim = 1 if cloud.directions is None else cloud.directions.shape[-1]
    sums, masses = energy.new_empty(rows, chunks, 3, k), energy.new_empty(rows, chunks)
    totals = energy.new_empty(2, rows) if out.at_q is not None else None
    flags = None if float64 else torch.empty(rows, dtype=torch.int32, device=sums.device)
    within = None if float64 else energy.new_empty(rows)

    def add(dtype: tl.dtype, only: Tensor | None) -> None:
        group = min(k, _GROUPS[dtype])
        sum_over_points[(chunks, rows, cdiv(k, group))](
            means, scales, cloud.points, cloud.weights, cloud.directions, only, sums, masses, cloud.n, _CHUNK,
            means_stride, scales_stride, *cloud.strides, k, group, dim, _BLOCK, dtype,
        )  # fmt: skip

    def end(second: bool) -> None:
        finish[(rows,)](
            weights, means, scales, energy, sums, masses, out.losses, flags, within, totals, out.at_p, rows, chunks,
            each, weights_stride, means_stride, scales_stride, energy_stride, k, padded, second,
        )  # fmt: skip

    add(_DTYPES[working], None)
    end(False)
    if not float64:
        add(tl.float64, flags)
        end(True)
    if out.at_q is not None:
        strides = weights_stride, means_stride, scales_stride
        prepared = _prepared((weights, means, scales), strides, rows, working)
        evaluate_points[(cdiv(cloud.n, _SCORES), rows)](
            *prepared, cloud.points, cloud.weights, totals, None, out.at_q, cloud.n, each, *cloud.strides,
            k, _SCORES, _DTYPES[working], False,
        )  # fmt: skip


def _prepared(
    tensors: tuple[Tensor | None, ...], strides: tuple[int, ...], rows: int, working: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return half the mean distance within mixtures, and tables of their components; see `prepare`."""
    weights, means, scales = tensors
    assert means is not None
    k = means.shape[-1]
    within = means.new_empty(rows, dtype=torch.float64)
    exact = means.new_empty(rows, 4, k, dtype=torch.float64)
    table = torch.empty_like(exact, dtype=working)
    prepare[(rows,)](weights, means, scales, within, exact, table, *strides, k, next_power_of_2(k))
    return within, exact, table


def _uniform(weights: Tensor) -> bool:
    """Return whether all weights are one number in memory."""
    return weights.stride(-1) == 0


def _flat(side: Operand, batch: torch.Size) -> tuple[tuple[Tensor | None, ...], tuple[int, ...]]:
    """Return the tensors of a side, and their strides along the flat batch."""
    flat = [(None, 0) if x is None else _rows(x, batch) for x in side]
    return tuple(x for x, _ in flat), tuple(stride for _, stride in flat)


def _rows(x: Tensor, batch: torch.Size) -> tuple[Tensor, int]:
    """Return a tensor `(*batch, k)`, or one that broadcasts to that, with its stride along the flat batch.

    Its last axis is contiguous. Nothing is copied if the batch is contiguous, shared, or a single axis.
    """
    k = x.shape[-1]
    if x.numel() == k:
        return x if k == 1 or x.stride(-1) == 1 else x.contiguous(), 0
    if x.shape[:-1] != batch:
        x = x.expand(*batch, k)
    if x.is_contiguous():
        return x, k
    if x.ndim == 2 and (x.stride(1) == 1 or k == 1):
        return x, x.stride(0)
    return x.reshape(-1, k).contiguous(), k
