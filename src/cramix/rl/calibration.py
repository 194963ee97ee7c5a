"""Calibration: do predicted return distributions agree with the returns of episodes? And how to make them.

Every step of an episode is a forecast: the distribution of the return of the action that was taken. The return that
followed is the observation.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import gymnasium
import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from torch import Tensor

from cramix.checks import check_integer
from cramix.loss.per_observation import crps
from cramix.mixture import NormalMixture
from cramix.rl.evaluation import MAX_UNKNOWN, evaluate
from cramix.rl.recalibration import PRIOR_DOUBT, select
from cramix.rl.trajectories import Trajectories, play_trajectories

if TYPE_CHECKING:
    from cramix.rl.algorithm import DistributionalDQN
    from cramix.rl.risk import Risk

LEVELS = (0.5, 0.8, 0.95)
# Seeds of episodes for recalibration start here, so that no evaluation meets them.
_SEED = 1_500_000_000
# Fewer episodes say too little.
MIN_EPISODES = 16
# One episode in so many is played without exploration; every second of them validates the recalibration.
_GREEDY = 4
# One episode in so many is played by CVaR of this level, with each of two values of `doubt`.
_PLAYED_BY_RISK, _LEVEL = 8, 0.25


class ReturnCalibration(NamedTuple):
    """Forecasts of returns, and what followed; all tensors are `(steps)`, in float64 on the CPU.

    Args:
        pit: probability integral transform, the predicted probability of a smaller return.
        crps: continuous ranked probability score.
        means: predicted.
        deviations: predicted standard deviations.
        returns: realised.
        remaining: steps to the end of the episode.
        episodes: number of the episode.
        scores: undiscounted returns of the episodes, `(episodes)`.

    Example:
        >>> x = torch.zeros(2, dtype=torch.float64)
        >>> found = ReturnCalibration(torch.tensor([0.2, 0.7]), x, x, x + 1, x, x, x, torch.zeros(1))
        >>> found.summary()["coverage_80"]
        1.0
    """

    pit: Tensor
    crps: Tensor
    means: Tensor
    deviations: Tensor
    returns: Tensor
    remaining: Tensor
    episodes: Tensor
    scores: np.ndarray

    def coverage(self, level: float) -> float:
        """Return the fraction of returns in the central interval of this probability."""
        return float(((self.pit - 0.5).abs() <= level / 2).double().mean())

    @property
    def empirical_crps(self) -> float:
        """Mean CRPS of the empirical distribution of all returns: of a forecast that does not see the state."""
        y, n = self.returns.sort().values, len(self.returns)
        ranks = torch.arange(1, n + 1, dtype=y.dtype)
        return float(((2 * ranks - n - 1) * y).sum() / n**2)  # E|Y - Y'| / 2

    @property
    def bias(self) -> float:
        """Mean of the returns minus the predicted means."""
        return float((self.returns - self.means).mean())

    @property
    def error(self) -> float:
        """Root mean square of the returns minus the predicted means."""
        return float((self.returns - self.means).square().mean().sqrt())

    @property
    def deviation(self) -> float:
        """Root mean square of the predicted standard deviations, which is `error` if they are right."""
        return float(self.deviations.square().mean().sqrt())

    def summary(self) -> dict[str, float]:
        """Return the figures by name."""
        return {
            "return_crps": float(self.crps.mean()),
            "empirical_crps": self.empirical_crps,
            **{f"coverage_{100 * level:.0f}": self.coverage(level) for level in LEVELS},
            "return_bias": self.bias,
            "return_error": self.error,
            "return_deviation": self.deviation,
        }

    def where(self, rows: Tensor) -> ReturnCalibration:
        """Return the steps at which a mask is true."""
        return self._replace(**{name: getattr(self, name)[rows] for name in self._fields[:-1]})

    def by(self, values: Tensor, edges: Sequence[float]) -> Iterator[tuple[float, float, ReturnCalibration]]:
        """Yield the steps with values `(steps)` in each interval between edges that is not empty, with its ends.

        Args:
            values: such as `means`, which stand for the state, or `remaining`.
            edges: increasing; the first end of an interval belongs to it.
        """
        for low, high in pairwise(edges):
            rows = (values >= low) & (values < high)
            if rows.any():
                yield low, high, self.where(rows)


def evaluate_calibration(
    model: DistributionalDQN,
    env: str | Callable[[], gymnasium.Env],
    episodes: int = 60,
    *,
    seed: int = 0,
    risk: Risk | None = None,
) -> ReturnCalibration:
    """Compare predicted return distributions with the returns of episodes without exploration.

    Args:
        model: the agent.
        env: name of the environment, or a function that creates it.
        episodes: number of episodes, the same as those of `cramix.rl.evaluation.evaluate`.
        seed: of the first episode.
        risk: a measure in place of that of the agent. Its predictions are for its own measure.

    Example:
        >>> from cramix.rl import GMDQN
        >>> model = GMDQN("MlpPolicy", "CartPole-v1", seed=0, learning_starts=50, policy_kwargs={"net_arch": [16]})
        >>> found = evaluate_calibration(model.learn(100), "CartPole-v1", episodes=2)
        >>> found.pit.shape == found.returns.shape, found.scores.shape  # (steps) and (episodes)
        (True, (2,))
    """
    check_integer("episodes", episodes, 1)
    return compare(model, _known(play_trajectories(model, env, episodes, seed=seed, risk=risk), model))


def _known(played: Trajectories, model: DistributionalDQN) -> Trajectories:
    """Require steps whose return is known."""
    if not len(played.returns):
        raise ValueError(
            f"episodes must terminate, or last until gamma^steps is below {MAX_UNKNOWN}; got {len(played.scores)} that "
            f"are truncated earlier, with gamma {model.gamma}. Use a longer time limit."
        )
    return played


def compare(model: DistributionalDQN, played: Trajectories) -> ReturnCalibration:
    """Compare predicted return distributions with the returns of trajectories that were played."""
    device = model.policy.unit.device
    with torch.no_grad():
        every = model.policy.recalibration(played.raw.to(device), played.preferred.to(device))
        p = select(every, played.actions.to(device)).to("cpu", torch.float64)
        pit, scores = p.cdf(played.returns), crps(p, played.returns)
    return ReturnCalibration(
        pit, scores, p.mean, p.variance.sqrt(), played.returns, played.remaining, played.episodes, played.scores
    )


def calibrate(
    model: DistributionalDQN, env: str | Callable[[], gymnasium.Env], episodes: int = 800, *, seed: int = 0
) -> ReturnCalibration:
    """Fit the recalibration of an agent to the returns of new episodes, see `cramix.rl.recalibration`.

    In three quarters of the episodes one action, at a random step, is one that the agent would not take: they show how
    far returns of other actions spread. The steps from there on count. The other quarter is played without exploration,
    half of it for validation. If the CRPS there does not fall by more than its standard error, the agent is left
    without recalibration.

    If the episodes show that nearly equal actions differ in their spread, an eighth as many more are played by CVaR,
    once with spreads of their own and once with a shared one, and the better way is kept.

    Learning on removes the recalibration, because the network is no longer the same.

    Args:
        model: the agent, which is changed; `save` includes the recalibration.
        env: name of the environment, or a function that creates it.
        episodes: number of episodes.
        seed: of the first episode; evaluations never meet these episodes.

    Returns:
        The calibration on the episodes that the fit did not use.

    Example:
        >>> from cramix.rl import GMDQN
        >>> model = GMDQN("MlpPolicy", "CartPole-v1", seed=0, learning_starts=50, policy_kwargs={"net_arch": [16]})
        >>> found = calibrate(model.learn(100), "CartPole-v1", episodes=16)
        >>> found.pit.shape == found.returns.shape, model.policy.recalibration.active in (True, False)
        (True, True)
    """
    check_integer("episodes", episodes, MIN_EPISODES)
    _require_spread(model, model.returns_class.distributional)
    before = copy.deepcopy(model.policy.recalibration)
    try:
        return _calibrate(model, env, episodes, seed)
    except BaseException:
        model.policy.recalibration = before
        raise


def _calibrate(
    model: DistributionalDQN, env: str | Callable[[], gymnasium.Env], episodes: int, seed: int
) -> ReturnCalibration:
    layer = model.policy.recalibration
    layer.clear()
    greedy = _known(play_trajectories(model, env, episodes // _GREEDY, seed=_SEED + seed), model)
    _require_spread(model, float(greedy.raw.variance.max()) > 0)
    lengths = torch.bincount(greedy.episodes).clamp_min(1).numpy()
    steps = np.random.default_rng([seed, _SEED]).integers(np.resize(lengths, episodes - episodes // _GREEDY))
    random = play_trajectories(model, env, len(steps), seed=_SEED + seed + episodes // _GREEDY, random_steps=steps)
    before, held_out = compare(model, greedy), greedy.episodes % 2 == 0
    own = greedy.actions == greedy.preferred, random.actions == random.preferred
    parts = greedy.rows(own[0] & ~held_out), random.rows(own[1] & ~random.off_policy)
    device = model.policy.unit.device
    weights, means, scales = (
        torch.cat([getattr(part.raw, name) for part in parts]) for name in ("weights", "means", "scales")
    )
    raw = NormalMixture(weights, means, scales, validate_args=False)
    preferred, returns, numbers = (
        torch.cat([getattr(part, name) for part in parts]).to(device) for name in ("preferred", "returns", "episodes")
    )
    numbers[len(parts[0].returns) :] += len(greedy.scores)  # those of the random episodes start from 0 too
    layer.fit(raw.to(device), preferred, returns, seed, numbers)
    off = random.rows(random.off_policy)
    layer.fit_doubt(off.raw.to(device), *(x.to(device) for x in (off.preferred, off.actions, off.returns)))
    if not layer.doubt and loses_by_risk(model, env, episodes // _PLAYED_BY_RISK, seed + episodes):
        layer.doubt = torch.full_like(layer.doubt, PRIOR_DOUBT)
    after = compare(model, greedy)
    gains = torch.zeros(len(greedy.scores), dtype=torch.float64)
    gains = gains.index_add(0, greedy.episodes, before.crps - after.crps)[greedy.episodes[held_out].unique()]
    if not gains.mean() > gains.std() / len(gains) ** 0.5:
        layer.clear()
        after = before
    return after.where(held_out)


def loses_by_risk(model: DistributionalDQN, env: str | Callable[[], gymnasium.Env], episodes: int, seed: int) -> bool:
    """Whether agents that act by CVaR reach less of it with spreads of their own than with a shared one.

    Acting by risk selects actions whose spreads are too small by mistake, which averages over actions do not show.
    """
    layer, worst = model.policy.recalibration, []
    for doubt in (0.0, PRIOR_DOUBT):
        layer.doubt = torch.full_like(layer.doubt, doubt)
        scores = np.sort(evaluate(model, env, episodes, seed=_SEED + seed, risk=f"cvar:{_LEVEL}"))
        worst.append(scores[: max(1, round(_LEVEL * episodes))].mean())
    layer.doubt = torch.zeros_like(layer.doubt)
    return bool(worst[0] < worst[1])


def _require_spread(model: DistributionalDQN, has_spread: bool) -> None:
    if not has_spread:
        raise ValueError(
            f"model must predict distributions; got a {type(model).__name__}, which predicts means. Use GMDQN."
        )


class CalibrationCallback(BaseCallback):
    """Logs the calibration of an agent while it learns: `eval/return_crps`, `eval/coverage_80`, ...

    Args:
        env: name of the environment, or a function that creates it.
        eval_freq: steps of the environments between evaluations.
        episodes: number of episodes of an evaluation.
        calibrate: number of episodes by which the final agent is calibrated; 0 leaves it as it is.
        seed: of the first episode; evaluations at all steps play the same episodes.

    Example:
        >>> from cramix.rl import GMDQN
        >>> model = GMDQN("MlpPolicy", "CartPole-v1", learning_starts=50, policy_kwargs={"net_arch": [16]})
        >>> model = model.learn(200, callback=CalibrationCallback("CartPole-v1", eval_freq=100, episodes=2))
    """

    def __init__(
        self,
        env: str | Callable[[], gymnasium.Env],
        eval_freq: int = 10_000,
        episodes: int = 20,
        *,
        calibrate: int = 0,
        seed: int = 0,
    ):
        super().__init__()
        check_integer("eval_freq", eval_freq, 1)
        check_integer("episodes", episodes, 1)
        check_integer("calibrate", calibrate, 0)
        self.env, self.eval_freq, self.episodes = env, eval_freq, episodes
        self.calibrate, self.seed = calibrate, seed
        self.history: list[dict[str, float]] = []

    def _on_step(self) -> bool:
        last = self.history[-1]["step"] if self.history else 0
        if self.num_timesteps < last:  # learning has started again, from step 0
            last = 0
        if self.num_timesteps - last >= self.eval_freq:
            self._record()
        return True

    def _on_training_end(self) -> None:
        if self.calibrate:
            calibrate(self.model, self.env, self.calibrate, seed=self.seed)  # type: ignore[arg-type]
            self._record()

    def _record(self) -> None:
        """Evaluate, and log the figures."""
        result = evaluate_calibration(self.model, self.env, self.episodes, seed=self.seed)  # type: ignore[arg-type]
        self.history.append({"step": self.num_timesteps, **result.summary()})
        for name, value in result.summary().items():
            self.logger.record(f"eval/{name}", value)
        self.logger.dump(self.num_timesteps)
