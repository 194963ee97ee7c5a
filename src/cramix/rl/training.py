"""Training runs in a folder: checkpoints to resume from, evaluations, and a result at the end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import TrainFrequencyUnit

from cramix.checks import check_choice, check_integer
from cramix.rl import file
from cramix.rl.algorithm import DistributionalDQN
from cramix.rl.calibration import calibrate, compare
from cramix.rl.environments import is_atari, make_training_env
from cramix.rl.evaluation import evaluate
from cramix.rl.folder import locked, read_json, read_result, remove_partial_files, write_json
from cramix.rl.spaces import check_spaces
from cramix.rl.trajectories import play_trajectories

# Called with the step and the latest figures.
Report = Callable[[int, dict[str, Any]], None]


@dataclass(frozen=True)
class Run:
    """A training run.

    Args:
        env: name of the environment, such as "LunarLander-v3", or "module:Name-v0" if a module registers it.
        algo: name of the algorithm, a key of `ALGORITHMS`.
        steps: number of environment steps.
        seed: of everything random.
        preset: of the algorithm's settings; if empty, "atari" for games of the Arcade Learning Environment, and
            "default" for others.
        settings: changes to the preset; plain values.
        interval: steps between checkpoints, the most that an interruption loses.
        curve_episodes: number of evaluation episodes at each checkpoint, for the learning curve.
        episodes: number of evaluation episodes of the final agent.
        label: name of the run in a comparison; that of its algorithm if empty.
        envs: number of environments that are stepped together; the updates per environment step remain those of one.
    """

    env: str
    algo: str = "gmdqn"
    steps: int = 300_000
    seed: int = 0
    preset: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    interval: int = 25_000
    curve_episodes: int = 10
    episodes: int = 100
    label: str = ""
    envs: int = 1

    def __post_init__(self):
        from cramix.rl import ALGORITHMS

        check_choice("algo", self.algo, ALGORITHMS)
        for name in ("steps", "interval", "episodes", "envs"):
            check_integer(name, getattr(self, name), 1)
        check_integer("curve_episodes", self.curve_episodes, 0)
        _find(self.env)
        if not self.preset:
            object.__setattr__(self, "preset", "atari" if is_atari(self.env) else "default")

    @property
    def name(self) -> str:
        """Name of the run in a comparison."""
        return self.label or self.algo

    def algorithm(self) -> type[DistributionalDQN]:
        """Return the class of the algorithm."""
        from cramix.rl import ALGORITHMS

        return ALGORITHMS[self.algo]


def _find(env: str) -> None:
    """Require an environment that is registered, or that a module registers."""
    module, _, name = env.rpartition(":")
    try:
        if module:
            import_module(module)
    except ImportError as error:
        raise ValueError(
            f"env must be in a module that can be imported; got {env!r}: {error}. Install it, or set PYTHONPATH."
        ) from None
    if name not in gymnasium.registry:
        raise ValueError(f"env must be a registered environment; got {env!r}. Try LunarLander-v3, or module:Name-v0.")


def train(run: Run, folder: str | Path, report: Report | None = None) -> dict[str, Any]:
    """Train in a folder, or resume the run that is there, and return the result.

    At each checkpoint the environment is reset with a new seed. A resumed run is therefore bit-identical to one that
    was never interrupted.

    Args:
        run: what to train.
        folder: of `run.json`, `model.zip`, the replay buffer and `result.json`; created if needed.
        report: called with the step and the latest figures, a few times per second and at each checkpoint; they have
            "compiling" before the first update, which may take a while.
    """
    with locked(Path(folder)):
        return _train(run, Path(folder), report)


def _train(run: Run, folder: Path, report: Report | None) -> dict[str, Any]:
    remove_partial_files(folder, "run.json", "model.zip", "memory-*.npz", "curve-*.json", "result.json")
    check_folder(run, folder)
    if (folder / "result.json").exists():
        _remove_checkpoints(folder, f"curve-{checkpoint_step(folder)}.json")
        return read_result(folder)
    env = make_training_env(run.env, run.envs)
    try:
        model, curve = _start(run, folder, env)
        write_json(folder / "run.json", asdict(run))  # after the settings were found to be valid
        checkpointer = _Checkpointer(run, folder, curve, report)
        left = run.steps - model.num_timesteps
        if left > 0:
            env.seed(start_seed(run.seed, model.num_timesteps))
            torch.manual_seed(start_seed(run.seed, model.num_timesteps))  # of layers that draw, as dropout and IQN
            # By the steps of the whole run: a resumed run is then compiled like an uninterrupted one.
            model.learner.compiled = model.is_worth_compiling(run.steps)
            model.learn(left, callback=checkpointer, log_interval=None, reset_num_timesteps=model.num_timesteps == 0)
            checkpointer.write()
        returns = evaluate(model, run.env, run.episodes)
    finally:
        env.close()
    return finish(run, folder, model, returns, checkpointer.curve, checkpointer.seconds)


def finish(
    run: Run,
    folder: Path,
    model: DistributionalDQN,
    returns: np.ndarray,
    curve: list[dict[str, Any]],
    seconds: float,
    **more: Any,
) -> dict[str, Any]:
    """Write the model and the result of a run, and return the result."""
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
    write_json(folder / "run.json", asdict(run))
    model.save(folder / "model.zip")
    write_json(folder / "result.json", result)
    _remove_checkpoints(folder, f"curve-{model.num_timesteps}.json")
    return result


def calibrate_run(folder: str | Path, episodes: int) -> bool:
    """Calibrate the agent of a finished run by new episodes, see `cramix.rl.calibrate`, and save it.

    Returns:
        Whether the agent has a recalibration: it has none if its distributions cannot be improved by one.
    """
    with locked(Path(folder)):
        result, path = read_result(Path(folder)), Path(folder) / "model.zip"
        run = Run(**{name: result[name] for name in Run.__dataclass_fields__ if name in result})
        model = run.algorithm().load(path)
        calibrate(model, run.env, episodes)
        model.save(path)
    return model.policy.recalibration.active


def _remove_checkpoints(folder: Path, *needed: str) -> None:
    """Remove replay buffers and curves but those that are still needed."""
    for old in (*folder.glob("memory-*.npz"), *folder.glob("curve-*.json")):
        if old.name not in needed:
            old.unlink()


def checkpoint_step(folder: str | Path) -> int:
    """Return the step from which the run in a folder resumes; 0 without a checkpoint."""
    path = Path(folder) / "model.zip"
    return file.describe(path)["counts"]["num_timesteps"] if path.exists() else 0


def check_folder(run: Run, folder: str | Path) -> None:
    """Require that a folder does not hold a different run."""
    asked, path = json.loads(json.dumps(asdict(run))), Path(folder) / "run.json"
    if not path.exists():
        return
    found = {"envs": 1, **read_json(path, "env")}  # runs of older versions do not say so
    differences = [name for name in asked if asked[name] != found.get(name)]
    if differences:
        name = differences[0]
        raise ValueError(
            f"{folder} must hold this run or none; got one with {name} {found.get(name)!r} instead of {asked[name]!r}. "
            "Use another folder, or the same settings to resume."
        )


def _start(run: Run, folder: Path, env: Any) -> tuple[DistributionalDQN, list[dict[str, Any]]]:
    """Return the model of the last checkpoint and the learning curve up to it, or new ones."""
    algorithm, path = run.algorithm(), folder / "model.zip"
    if not path.exists():
        check_spaces(env.observation_space, env.action_space)
        policy = "MlpPolicy"
        if isinstance(env.observation_space, gymnasium.spaces.Dict):
            policy = "MultiInputPolicy"
        elif len(env.observation_space.shape or ()) == 3:
            policy = "CnnPolicy"
        try:
            model = algorithm(policy, env, seed=run.seed, **algorithm.preset(run.preset, **run.settings))
        except (TypeError, RuntimeError) as error:  # unknown names, or devices
            raise ValueError(f"{run.algo}: {str(error).partition(chr(10))[0]}") from error
        if run.envs > 1:
            keep_pace(model)
        return model, []
    model = algorithm.load(path, env)
    if model.num_timesteps < run.steps:  # a finished run needs no replay buffer
        model.load_replay_buffer(folder / f"memory-{model.num_timesteps}.npz", truncate_last_traj=False)
    path = folder / f"curve-{model.num_timesteps}.json"
    curve = read_json(path) if path.exists() else []  # runs trained jointly have it only in their result
    return model, curve


def keep_pace(model: DistributionalDQN) -> None:
    """Change the settings of a model with several environments so that it learns as with one.

    Each environment step leads to as many updates as with one environment, and the target network moves as far.
    """
    every: Any = model.train_freq
    if every.unit is not TrainFrequencyUnit.STEP:
        raise ValueError(
            f"train_freq must be a number of steps with {model.n_envs} environments; got {every.frequency} episodes. "
            "Use one environment, or a number of steps."
        )
    if model.gradient_steps > 0:
        pace = Fraction(model.n_envs * model.gradient_steps, every.frequency)
        model.gradient_steps, model.train_freq = pace.numerator, pace.denominator
    if model.target_update_interval < model.n_envs:
        model.tau = 1 - (1 - model.tau) ** (model.n_envs / model.target_update_interval)


def curve_seed(step: int) -> int:
    """Return the seed of the evaluation at a step, which differs from that of the result."""
    return 100_000 + step


def start_seed(seed: int, step: int) -> int:
    """Return the seed of the environment from a step on."""
    return int(np.random.SeedSequence([seed, step]).generate_state(1)[0])


class _Checkpointer(BaseCallback):
    """Writes checkpoints, evaluates at them, and reports progress."""

    def __init__(self, run: Run, folder: Path, curve: list[dict[str, Any]], report: Report | None):
        super().__init__()
        self.run, self.folder, self.curve, self.report = run, folder, curve, report
        self.before = curve[-1]["seconds"] if curve else 0.0
        self.started = self.reported = time.monotonic()
        self.figures: dict[str, Any] = {}

    @property
    def seconds(self) -> float:
        return self.before + time.monotonic() - self.started

    def _on_rollout_start(self) -> None:
        step = self.model.num_timesteps
        due = (self.curve[-1]["step"] if self.curve else 0) + self.run.interval
        if due <= step < self.run.steps:
            self.write()
            env = self.model.env
            assert env is not None
            env.seed(start_seed(self.run.seed, step))
            torch.manual_seed(start_seed(self.run.seed, step))
            self.model._last_obs = env.reset()  # type: ignore[assignment]

    def write(self) -> None:
        """Evaluate, and write a checkpoint: the model last, because it determines which other files belong to it."""
        model: Any = self.model
        step = model.num_timesteps
        model.replay_buffer.end_episodes()
        row: dict[str, Any] = {"step": step, "seconds": self.seconds}
        if self.run.curve_episodes:
            played = play_trajectories(model, self.run.env, self.run.curve_episodes, seed=curve_seed(step))
            row |= {"mean": float(played.scores.mean()), "std": float(played.scores.std())}
            if len(played.returns):  # truncated episodes may have none that are known
                found = compare(model, played).summary()
                row |= {name: found[name] for name in ("return_crps", "coverage_80")}
        self.curve.append(row)
        model.save_replay_buffer(self.folder / f"memory-{step}.npz")
        write_json(self.folder / f"curve-{step}.json", self.curve)
        model.save(self.folder / "model.zip")
        _remove_checkpoints(self.folder, f"memory-{step}.npz", f"curve-{step}.json")
        self._report()

    def _on_step(self) -> bool:
        model: Any = self.model
        compiling = model.learner.compiled and model.learner.is_new and model.num_timesteps > model.learning_starts
        if compiling or self.figures.pop("compiling", False):
            self.figures |= {"compiling": True} if compiling else {}
            self._report()
        elif self.report is not None and time.monotonic() - self.reported > 0.2:
            self._report()
        return True

    def _report(self) -> None:
        """Report the mean of the last returns with exploration, the last evaluation, and its step."""
        if self.report is None:
            return
        self.reported = time.monotonic()
        buffer = self.model.ep_info_buffer
        if buffer:
            self.figures["return"] = float(np.mean([episode["r"] for episode in list(buffer)[-20:]]))
        if self.curve:
            self.figures |= {"evaluation": self.curve[-1].get("mean"), "evaluated": self.curve[-1]["step"]}
        self.report(self.model.num_timesteps, self.figures)
