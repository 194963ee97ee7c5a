"""Recalibration: a layer after the network that corrects the location and the spread of return distributions.

Bootstrapped targets add the errors of every step to the predicted spread. The layer is fitted to the returns of
episodes that were played, and leaves the order of actions by their mean as it is.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from cramix.mixture import NormalMixture
from cramix.rl.tail import Tail, fit_tail

# Of the small network, and of its fit.
_HIDDEN = 16
_STEPS = 600
_BATCH = 1024
_RATE = 0.01
_PENALTY = 1e-3
_PENALTY_OF_FEW = 5.0
# Standardised features are clamped, so that unknown states get the correction of the nearest known ones.
_LIMIT = 3.0
# Candidates of `doubt`, and its value where the data do not decide.
_DOUBTS = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
PRIOR_DOUBT = 0.2
# Fewer actions off the policy say too little about the spread of such actions.
_MIN_OFF_POLICY = 30
_BUFFERS = (
    *("centre", "width", "hidden_weight", "hidden_bias", "weight", "bias", "doubt"),
    *("tail_weight", "tail_shift", "tail_scale"),
)


class Recalibration(nn.Module):
    """Shifts and rescales the mixtures of all actions of a state.

    In state s the agent prefers action b, with mean `m_b` and standard deviation `s_b`. A small network predicts a
    factor `f` and a shift from `m_b`, `log s_b` and the disagreement of the members on `m_b`. Both are the same for all
    actions. The spread of another action a is `f s_b (s_a / s_b)^c`: its own to the degree

        c = z^2 / (z^2 + doubt^2),  z = (m_b - m_a) / (f s_b).

    Where two actions are nearly equal, differences of their predicted spreads are mostly errors of the network, and
    CVaR would rank actions by them. `doubt` is fitted too; with 0, every action keeps its own spread and shape.
    Otherwise its shape is a mixture of its own, with weight c, and that of b.

    Where a few episodes go differently, a wide component is added, with a weight that depends on the state; see
    `cramix.rl.tail`. It is the same for all actions.

    Before it is fitted, the layer changes nothing, and adds nothing to files.

    Args:
        members: number of networks, whose equally weighted mixture the prediction is.
    """

    centre: Tensor
    width: Tensor
    hidden_weight: Tensor
    hidden_bias: Tensor
    weight: Tensor
    bias: Tensor
    doubt: Tensor
    tail_weight: Tensor
    tail_shift: Tensor
    tail_scale: Tensor  # 0 if there is no tail

    def __init__(self, members: int = 1):
        super().__init__()
        self.members = members
        self.active = False
        shapes = ((3,), (3,), (_HIDDEN, 3), (_HIDDEN,), (2, _HIDDEN), (2,), (), (4,), (), ())
        for name, shape in zip(_BUFFERS, shapes, strict=True):
            self.register_buffer(name, torch.zeros(shape))

    def clear(self) -> None:
        """Change nothing from now on."""
        self.active = False

    def forward(self, raw: NormalMixture, preferred: Tensor) -> NormalMixture:
        """Return the calibrated mixtures of all actions.

        Args:
            raw: of the network, batch shape `(batch, actions)`.
            preferred: index of the action that the agent prefers, `(batch)`.
        """
        if not self.active:
            return raw
        p, features = self._corrected(raw, preferred)
        return self._with_tail(p, features) if self.tail_scale else p

    def _corrected(self, raw: NormalMixture, preferred: Tensor) -> tuple[NormalMixture, Tensor]:
        """Return the mixtures with the new location and spread, and the features of the states, `(batch, 1, 3)`."""
        mean, spread, means, scales = _standardised(raw)
        row = preferred.unsqueeze(-1)
        own_mean, own_spread = mean.gather(1, row), spread.gather(1, row)  # (batch, 1)
        several = row.unsqueeze(-1).expand(-1, 1, means.shape[-1])
        own = [x.gather(1, several) for x in (raw.weights, means, scales)]  # (batch, 1, k)
        features = self._features(own_mean, own_spread, own[0], own[1])
        log_factor, shift = self._correction(features).unbind(-1)  # (batch, 1)
        factor = log_factor.exp()
        own_spread = factor * own_spread
        location = (mean + shift * own_spread).unsqueeze(-1)
        if not self.doubt:
            scale = (factor * spread).unsqueeze(-1)
            p = NormalMixture(raw.weights, location + scale * means, scale * scales, validate_args=False)
            return p, features
        share = self._share(own_mean - mean, own_spread)
        scale = (own_spread * (factor * spread / own_spread).pow(share)).unsqueeze(-1)
        share = share.unsqueeze(-1)
        # Components of the action, then those of the preferred one.
        weights = torch.cat([share * raw.weights, (1 - share) * own[0]], -1)
        both = [torch.cat([x, y.expand_as(x)], -1) for x, y in zip((means, scales), own[1:], strict=True)]
        p = NormalMixture(weights, location + scale * both[0], scale * both[1], validate_args=False)
        return p, features

    def _with_tail(self, p: NormalMixture, features: Tensor) -> NormalMixture:
        """Return mixtures `(batch, actions)` with the rare outcome, for features `(batch, 1, 3)`."""
        tail = Tail(self.tail_weight, self.tail_shift, self.tail_scale)
        shape = (*p.batch_shape, 1)
        w = tail.probability(self._inputs(features)).unsqueeze(-1).expand(shape)
        mean = (p.weights * p.means).sum(-1, keepdim=True)
        weights = torch.cat([(1 - w) * p.weights, w], -1)
        means = torch.cat([p.means, mean + tail.shift], -1)
        scales = torch.cat([p.scales, tail.scale.expand(shape)], -1)
        return NormalMixture(weights, means, scales, validate_args=False)

    def _inputs(self, features: Tensor) -> Tensor:
        """Return standardised features; those of unknown states are those of the nearest known ones."""
        return ((features - self.centre) / self.width).clamp(-_LIMIT, _LIMIT)

    def _share(self, gap: Tensor, spread: Tensor) -> Tensor:
        """Return to which degree actions keep their own spread."""
        z = (gap / spread).square()
        return z / (z + self.doubt.square())

    def _features(self, mean: Tensor, spread: Tensor, weights: Tensor, means: Tensor) -> Tensor:
        """Return the mean, the log of the spread and of the relative disagreement of members, `(*batch, 3)`.

        Args:
            mean: `(*batch)`.
            spread: `(*batch)`.
            weights: `(*batch, k)`.
            means: standardised, `(*batch, k)`.
        """
        each = (weights * means).unflatten(-1, (self.members, -1)).sum(-1)
        disagreement = self.members * each.square().mean(-1).sqrt()
        return torch.stack([mean, spread.log(), (disagreement + 0.01).log()], -1)

    def _correction(self, features: Tensor) -> Tensor:
        """Return the log of the factor, and the shift in units of the new spread, `(batch, 2)`."""
        return torch.tanh(self._inputs(features) @ self.hidden_weight.T + self.hidden_bias) @ self.weight.T + self.bias

    def fit(
        self, raw: NormalMixture, preferred: Tensor, returns: Tensor, seed: int = 0, episodes: Tensor | None = None
    ) -> None:
        """Fit factor and shift to the returns of preferred actions, by the CRPS, and then the tail.

        Args:
            raw: of the network, batch shape `(n, actions)`.
            preferred: index of the preferred action, which was taken, `(n)`.
            returns: realised, `(n)`.
            seed: of the initial weights and the batches.
            episodes: number of the episode, `(n)`; None fits no tail.
        """
        generator = torch.Generator(device="cpu").manual_seed(seed)
        device = raw.means.device
        own = select(raw, preferred)
        weights = own.weights
        mean, spread, means, scales = _standardised(own)
        y = ((returns.to(mean) - mean) / spread).detach()
        # The CRPS is E|X - y| - E|X - X'| / 2; the second term is proportional to the factor, and computed once.
        energies = 0.5 * _self_distance(weights, means, scales)
        importance = spread / spread.mean()  # of the CRPS in units of the rewards
        features = self._features(mean, spread, weights, means)
        self.centre, self.width = features.mean(0), features.std(0, correction=0).clamp_min(1e-6)
        self.hidden_weight = torch.randn(_HIDDEN, 3, generator=generator).to(mean)
        self.hidden_bias = torch.randn(_HIDDEN, generator=generator).to(mean)
        self.weight = mean.new_zeros(2, _HIDDEN)
        # Starts from one factor and one shift for all states.
        middle = y.median()
        factor = (y - middle).abs().mean().clamp_min(1e-6) / _mean_distance(weights, means, scales, 0 * y).mean()
        self.bias = torch.stack([factor.log(), middle / factor])
        trained = ("hidden_weight", "hidden_bias", "weight", "bias")
        leaves = [getattr(self, name).requires_grad_() for name in trained]
        optimizer = torch.optim.Adam(leaves, lr=_RATE)
        for step in range(_STEPS):
            rows = torch.randint(len(y), (min(_BATCH, len(y)),), generator=generator).to(device)
            log_factor, shift = self._correction(features[rows]).unsqueeze(-1).unbind(-2)
            factor = log_factor.exp()
            errors = _mean_distance(weights[rows], means[rows] + shift, scales[rows], y[rows] / factor.squeeze(-1))
            loss = (importance[rows] * factor.squeeze(-1) * (errors - energies[rows])).mean()
            size = self.weight.square().sum() + 0.1 * self.hidden_weight.square().sum()
            penalty = (_PENALTY + _PENALTY_OF_FEW / len(y)) * size
            for group in optimizer.param_groups:
                group["lr"] = _RATE * (1 - step / _STEPS)
            optimizer.zero_grad()
            (loss + penalty).backward()
            optimizer.step()
        for name in trained:
            setattr(self, name, getattr(self, name).detach())
        self.doubt = torch.zeros_like(self.centre[0])
        self.tail_weight, self.tail_shift = mean.new_zeros(4), mean.new_zeros(())
        self.tail_scale = mean.new_zeros(())
        self.active = True
        if episodes is not None:
            self._fit_tail(raw, preferred, returns, episodes)

    def _fit_tail(self, raw: NormalMixture, preferred: Tensor, returns: Tensor, episodes: Tensor) -> None:
        every, features = self._corrected(raw, preferred)
        p = select(every, preferred)
        mean, spread, _, _ = _standardised(p)
        y = returns.to(mean)
        tail = fit_tail(self._inputs(features.squeeze(1)), y - mean, spread, p.log_prob(y), episodes)
        if tail is not None:
            self.tail_weight, self.tail_shift, self.tail_scale = (x.to(mean) for x in tail)

    def fit_doubt(self, raw: NormalMixture, preferred: Tensor, actions: Tensor, returns: Tensor) -> None:
        """Fit `doubt` to the returns of actions other than the preferred ones.

        The criterion is how well the spread predicts the order of magnitude of the errors: the mean absolute deviation
        of `log(|error| / spread)` from its median. The CRPS would be dominated by the actions with the largest spread,
        and a likelihood by a few failed episodes.

        A value is chosen if it is better than 0 by at least twice the standard error of the gain, and 0 if it is better
        than `PRIOR_DOUBT` by as much. If neither is so, `doubt` is `PRIOR_DOUBT`: acting by CVaR then differs less
        from acting by the mean, which is the smaller mistake.

        Args:
            raw: of the network, batch shape `(n, actions)`.
            preferred: index of the preferred action, `(n)`.
            actions: index of the action that was taken, `(n)`.
            returns: realised, `(n)`.
        """
        rows = (actions != preferred).nonzero().squeeze(-1)
        self.doubt = torch.full_like(self.doubt, PRIOR_DOUBT)
        if len(rows) < _MIN_OFF_POLICY:
            return
        raw, preferred, actions = raw[rows], preferred[rows], actions[rows]
        misfits = []
        for doubt in _DOUBTS:
            self.doubt = torch.full_like(self.doubt, doubt)
            p = select(self._corrected(raw, preferred)[0], actions)  # the tail is that of all actions
            mean, spread, _, _ = _standardised(p)
            log_ratio = ((returns[rows].to(mean) - mean).abs() / spread + 0.01).log()
            misfits.append((log_ratio - log_ratio.median()).abs())
        gains = torch.stack([misfits[0] - x for x in misfits])  # (doubts, n), over a doubt of 0
        mean, error = gains.mean(-1), gains.std(-1) / len(rows) ** 0.5
        best, prior = int(mean.argmax()), _DOUBTS.index(PRIOR_DOUBT)
        chosen = PRIOR_DOUBT
        if mean[best] > 2 * error[best]:
            chosen = _DOUBTS[best]
        elif mean[prior] < -2 * error[prior]:
            chosen = 0.0
        self.doubt = torch.full_like(self.doubt, chosen)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        if self.active:
            super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        # Files of agents without calibration have none of these names.
        self.active = any(name.startswith(prefix) for name in state_dict)
        if self.active:
            for name in ("tail_weight", "tail_shift", "tail_scale"):  # older files have no tail
                state_dict.setdefault(prefix + name, torch.zeros_like(getattr(self, name)))
            super()._load_from_state_dict(state_dict, prefix, *rest)


def select(p: NormalMixture, actions: Tensor) -> NormalMixture:
    """Return the mixtures `(batch)` of one action each, from mixtures `(batch, actions)`."""
    rows = torch.arange(len(actions), device=actions.device)
    return NormalMixture(p.weights[rows, actions], p.means[rows, actions], p.scales[rows, actions], validate_args=False)


def _standardised(p: NormalMixture) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return mean and spread, `(*batch)`, and means and scales of `(X - mean) / spread`, `(*batch, k)`.

    The spread is the standard deviation, and positive also for atoms.
    """
    mean = (p.weights * p.means).sum(-1)
    centred = p.means - mean.unsqueeze(-1)
    variance = (p.weights * torch.addcmul(centred.square(), p.scales, p.scales)).sum(-1)
    spread = torch.maximum(variance.sqrt(), 1e-12 + 1e-6 * mean.abs())
    return mean, spread, centred / spread.unsqueeze(-1), p.scales / spread.unsqueeze(-1)


def _mean_distance(weights: Tensor, means: Tensor, scales: Tensor, y: Tensor) -> Tensor:
    """Return `E|X - y|` for mixtures `(n, k)` and numbers `(n)`; scales may be 0."""
    offset = means - y.unsqueeze(-1)
    z = offset / scales.clamp_min(1e-12)
    density = torch.exp(-0.5 * z.square()) * math.sqrt(2 / math.pi)
    return (weights * (scales * density + offset * torch.erf(z * math.sqrt(0.5)))).sum(-1)


def _self_distance(weights: Tensor, means: Tensor, scales: Tensor) -> Tensor:
    """Return `E|X - X'|` for mixtures `(n, k)`, one component at a time to save memory."""
    total = torch.zeros_like(means[:, 0])
    for weight, mean, scale in zip(weights.unbind(-1), means.unbind(-1), scales.unbind(-1), strict=True):
        joint = torch.hypot(scales, scale.unsqueeze(-1))
        total = total + weight * _mean_distance(weights, means, joint, mean)
    return total
