"""Runs: training in a folder, with checkpoints to go on from, evaluations, and a result at the end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from cramix.checks import check_choice, check_integer
from cramix.rl import file
from cramix.rl.algorithm import DistributionalDQN
from cramix.rl.runs.evaluation import evaluate
from cramix.rl.runs.folder import alone, read, remove_halves, result_of, write

Tell = Callable[[int, dict[str, Any]], None]


@dataclass(frozen=True)
class Run:
    """What is to be trained.

    Args:
        env: name of the environment, as "LunarLander-v3", or "module:Name-v0" of a module that registers it.
        algo: name of the algorithm, see `ALGORITHMS`.
        steps: of the environment.
        seed: of everything.
        preset: of the algorithm's settings.
        settings: changes to them; plain values.
        interval: steps between checkpoints; an interrupted run loses at most one.
        curve_episodes: played at each checkpoint, for the learning curve.
        episodes: played by the last agent.
        label: what the run is called in a comparison; by its algorithm if empty.
    """

    env: str
    algo: str = "gmdqn"
    steps: int = 300_000
    seed: int = 0
    preset: str = "default"
    settings: dict[str, Any] = field(default_factory=dict)
    interval: int = 25_000
    curve_episodes: int = 10
    episodes: int = 100
    label: str = ""

    def __post_init__(self):
        from cramix.rl import ALGORITHMS

        check_choice("algo", self.algo, ALGORITHMS)
        for name in ("steps", "interval", "episodes"):
            check_integer(name, getattr(self, name), 1)
        check_integer("curve_episodes", self.curve_episodes, 0)
        _find(self.env)

    @property
    def name(self) -> str:
        """What the run is called in a comparison."""
        return self.label or self.algo

    def algorithm(self) -> type[DistributionalDQN]:
        """Return the class of the algorithm."""
        from cramix.rl import ALGORITHMS

        return ALGORITHMS[self.algo]


def _find(env: str) -> None:
    """Require an environment that Gymnasium knows, or a module that tells it."""
    module, _, name = env.rpartition(":")
    try:
        if module:
            import_module(module)
    except ImportError as error:
        raise ValueError(
            f"env must be in a module that can be imported; got {env!r}: {error}. Install it, or set PYTHONPATH."
        ) from None
    if name not in gymnasium.registry:
        raise ValueError(
            f"env must be the name of a registered environment; got {env!r}. Try LunarLander-v3, or module:Name-v0."
        )


def train(run: Run, folder: str | Path, tell: Tell | None = None) -> dict[str, Any]:
    """Train in a folder, or go on with what is there, and return the result.

    At each checkpoint the environment starts anew from a seed of its own. So a run that was interrupted and goes on is,
    to the bit, the run that was not.

    Args:
        run: what to train.
        folder: for `run.json`, `model.zip`, the memory and `result.json`; made if it is not there.
        tell: called with the number of steps and the latest figures, some times a second and at each checkpoint.
    """
    with alone(Path(folder)):
        return _train(run, Path(folder), tell)


def _train(run: Run, folder: Path, tell: Tell | None) -> dict[str, Any]:
    remove_halves(folder, "run.json", "model.zip", "memory-*.npz", "curve-*.json", "result.json")
    check_folder(run, folder)
    if (folder / "result.json").exists():
        _tidy(folder, run.steps)
        return result_of(folder)
    env = make_vec_env(run.env, n_envs=1)
    try:
        model, curve = _begin(run, folder, env)
        write(folder / "run.json", asdict(run))  # now that the settings are known to be good ones
        keeper = _Keeper(run, folder, curve, tell)
        left = run.steps - model.num_timesteps
        if left > 0:
            env.seed(start_seed(run.seed, model.num_timesteps))
            model.learn(left, callback=keeper, log_interval=None, reset_num_timesteps=model.num_timesteps == 0)
            keeper.keep()
        returns = evaluate(model, run.env, run.episodes)
    finally:
        env.close()
    return conclude(run, folder, model, returns, keeper.curve, keeper.seconds)


def conclude(
    run: Run,
    folder: Path,
    model: DistributionalDQN,
    returns: np.ndarray,
    curve: list[dict[str, Any]],
    seconds: float,
    **more: Any,
) -> dict[str, Any]:
    """Write what a run came to, its model and result, and return the result."""
    result = {
        **asdict(run),
        "returns": returns.tolist(),
        "mean": float(returns.mean()),
        "std": float(returns.std()),
        "parameters": sum(p.numel() for p in model.policy.q_net.parameters()),
        "seconds": seconds,
        "curve": curve,
        **more,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "run.json", asdict(run))
    model.save(folder / "model.zip")
    write(folder / "result.json", result)
    _tidy(folder, run.steps)
    return result


def _tidy(folder: Path, step: int) -> None:
    """Remove what a run that is done needs no more."""
    for old in (*folder.glob("memory-*.npz"), *folder.glob("curve-*.json")):
        if old.name != f"curve-{step}.json":
            old.unlink()


def checkpoint(folder: str | Path) -> int:
    """Return the step that a run in a folder goes on from, 0 where it starts."""
    path = Path(folder) / "model.zip"
    return file.describe(path)["counts"]["num_timesteps"] if path.exists() else 0


def check_folder(run: Run, folder: str | Path) -> None:
    """Require that a folder does not hold another run; two are not mixed."""
    asked, path = json.loads(json.dumps(asdict(run))), Path(folder) / "run.json"
    if not path.exists():
        return
    found = read(path, "env")
    differences = [name for name in asked if asked[name] != found.get(name)]
    if differences:
        name = differences[0]
        raise ValueError(
            f"{folder} must hold this run or none; got one with {name} {found.get(name)!r} instead of {asked[name]!r}. "
            "Use another folder, or the same settings to go on."
        )


def _begin(run: Run, folder: Path, env: Any) -> tuple[DistributionalDQN, list[dict[str, Any]]]:
    """Return the model of the last checkpoint and the curve up to it, or new ones."""
    algorithm, path = run.algorithm(), folder / "model.zip"
    if not path.exists():
        settings = {"compile": "auto", **run.settings}
        policy = "MlpPolicy"
        if isinstance(env.observation_space, gymnasium.spaces.Dict):
            policy = "MultiInputPolicy"
        elif len(env.observation_space.shape or ()) == 3:
            policy = "CnnPolicy"
        try:
            return algorithm(policy, env, preset=run.preset, seed=run.seed, **settings), []
        except TypeError as error:  # names that nobody knows
            raise ValueError(f"{run.algo}: {error}") from error
    model = algorithm.load(path, env)
    if model.num_timesteps < run.steps:  # what is done needs no memory
        model.replay_buffer.load(folder / f"memory-{model.num_timesteps}.npz")
    path = folder / f"curve-{model.num_timesteps}.json"
    curve = read(path) if path.exists() else []  # a run that was trained with others has it in its result only
    return model, curve


def curve_seed(step: int) -> int:
    """Return the seed of the episodes played at a step, other ones than those of the result."""
    return 100_000 + step


def start_seed(seed: int, step: int) -> int:
    """Return the seed of the environment of a run from a step on."""
    return int(np.random.SeedSequence([seed, step]).generate_state(1)[0])


class _Keeper(BaseCallback):
    """Keeps checkpoints, evaluates at them, and tells how far the run is."""

    def __init__(self, run: Run, folder: Path, curve: list[dict[str, Any]], tell: Tell | None):
        super().__init__()
        self.run, self.folder, self.curve, self.tell = run, folder, curve, tell
        self.before = curve[-1]["seconds"] if curve else 0.0
        self.started = self.told = time.monotonic()
        self.figures: dict[str, Any] = {}

    @property
    def seconds(self) -> float:
        return self.before + time.monotonic() - self.started

    def _on_rollout_start(self) -> None:
        step = self.model.num_timesteps
        due = (self.curve[-1]["step"] if self.curve else 0) + self.run.interval
        if due <= step < self.run.steps:
            self.keep()
            env = self.model.env
            assert env is not None
            env.seed(start_seed(self.run.seed, step))
            self.model._last_obs = env.reset()  # type: ignore[assignment]

    def keep(self) -> None:
        """Evaluate, and write a checkpoint: the model last, for it says which memory and curve belong to it."""
        model: Any = self.model
        step = model.num_timesteps
        model.replay_buffer.cut()
        row: dict[str, Any] = {"step": step, "seconds": self.seconds}
        if self.run.curve_episodes:
            returns = evaluate(model, self.run.env, self.run.curve_episodes, seed=curve_seed(step))
            row |= {"mean": float(returns.mean()), "std": float(returns.std())}
        self.curve.append(row)
        model.replay_buffer.save(self.folder / f"memory-{step}.npz")
        write(self.folder / f"curve-{step}.json", self.curve)
        model.save(self.folder / "model.zip")
        for old in (*self.folder.glob("memory-*.npz"), *self.folder.glob("curve-*.json")):
            if f"-{step}." not in old.name:
                old.unlink()
        self._tell()

    def _on_step(self) -> bool:
        if self.tell is not None and time.monotonic() - self.told > 0.2:
            self._tell()
        return True

    def _tell(self) -> None:
        """Tell the mean of the last returns while exploring, the last evaluation, and the step of that."""
        if self.tell is None:
            return
        self.told = time.monotonic()
        buffer = self.model.ep_info_buffer
        if buffer:
            self.figures["return"] = float(np.mean([episode["r"] for episode in list(buffer)[-20:]]))
        if self.curve:
            self.figures |= {"evaluation": self.curve[-1].get("mean"), "evaluated": self.curve[-1]["step"]}
        self.tell(self.model.num_timesteps, self.figures)
