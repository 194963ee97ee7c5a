"""The base of all algorithms: deep Q-learning of return distributions, for Stable-Baselines3."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import Parameter, Signature, signature
from typing import Any, BinaryIO, ClassVar, Self

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, RolloutReturn
from stable_baselines3.common.utils import LinearSchedule, get_system_info

from cramix.mixture import NormalMixture
from cramix.rl import file
from cramix.rl.exploration import Exploration
from cramix.rl.learner import Learner, can_compile
from cramix.rl.masks import mask_of
from cramix.rl.network import to_tensor
from cramix.rl.objective import METRICS
from cramix.rl.policy import CnnPolicy, MlpPolicy, MultiInputPolicy, ReturnPolicy
from cramix.rl.replay import Replay
from cramix.rl.returns import Returns
from cramix.rl.risk import Risk, parse_risk
from cramix.rl.settings import Settings
from cramix.rl.spaces import check_spaces

# Below this number of updates of a small network, compiling takes longer than it saves.
_MIN_UPDATES_TO_COMPILE = 20_000
# Returns of fewer steps say too little about their scale.
_MIN_STEPS_TO_SCALE = 10
# Metrics in units of the network.
_SCALED_METRICS = ("smallest_scale", "value")
_RECOVERY = (
    "The model is intact: save it, or call set_env with a working environment and learn with reset_num_timesteps=False."
)


class DistributionalDQN(OffPolicyAlgorithm):
    """Deep Q-learning in which the network predicts the return distribution of every action.

    The target is the Bellman operator applied to the distribution of the best next action, which the online network
    selects and the target network evaluates. Subclasses define the kind of distributions and the loss between them.

    Args:
        policy: "MlpPolicy", "CnnPolicy" or "MultiInputPolicy".
        env: an environment with discrete actions, its name, or a vectorised environment.
        preset: the settings to start from, a key of `presets`.
        seed: of weights, exploration, replay and environments.
        device: "auto" takes a GPU if there is one.
        verbose: 1 prints the log.
        tensorboard_log: folder for TensorBoard.
        stats_window_size: number of episodes that the log averages over.
        settings: fields of `cramix.rl.Settings`.
    """

    policy_aliases: ClassVar[dict[str, type]] = {
        "MlpPolicy": MlpPolicy,
        "CnnPolicy": CnnPolicy,
        "MultiInputPolicy": MultiInputPolicy,
    }
    returns_class: ClassVar[type[Returns]]
    presets: ClassVar[dict[str, Settings]] = {"default": Settings()}
    settings: Settings
    policy: ReturnPolicy
    replay_buffer: Replay

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Write out the signature: the fields of `Settings`, with the defaults of the class."""
        super().__init_subclass__(**kwargs)
        own = "__init__" in vars(cls)  # a constructor of the user's has its own signature
        cls.__signature__ = None if own else _written_out(cls.presets["default"])  # type: ignore[attr-defined]

    def __init__(
        self,
        policy: str | type[ReturnPolicy],
        env: GymEnv | str | None,
        *,
        preset: str = "default",
        seed: int | None = None,
        device: torch.device | str = "auto",
        verbose: int = 0,
        tensorboard_log: str | None = None,
        stats_window_size: int = 100,
        _init_setup_model: bool = True,
        **settings: Any,
    ):
        if preset not in self.presets:
            raise ValueError(f'preset must be one of {", ".join(self.presets)}; got {preset!r}. Try "default".')
        self.settings = self.presets[preset].replace(**settings)
        if env is None and _init_setup_model:
            raise ValueError("env must be an environment; got None. Use load for a model that only acts.")
        if isinstance(env, gymnasium.Env):  # before Stable-Baselines3 allocates for spaces it does not know
            check_spaces(env.observation_space, env.action_space)
        super().__init__(
            policy,
            env,  # type: ignore[arg-type]
            learning_rate=self.settings.rate,
            buffer_size=self.settings.buffer_size,
            learning_starts=self.settings.learning_starts,
            batch_size=self.settings.batch_size,
            tau=self.settings.tau,
            gamma=self.settings.gamma,
            train_freq=self.settings.train_freq,
            gradient_steps=self.settings.gradient_steps,
            n_steps=self.settings.n_steps,
            policy_kwargs=dict(self.settings.policy_kwargs),
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            device=device,
            seed=seed,
            sde_support=False,
            support_multi_env=True,
        )
        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        check_spaces(self.observation_space, self.action_space)
        assert isinstance(self.action_space, spaces.Discrete)
        if issubclass(self.policy_class, MultiInputPolicy) and not isinstance(self.observation_space, spaces.Dict):
            raise ValueError(
                f"MultiInputPolicy must observe dictionaries; got {self.observation_space}. Use MlpPolicy or CnnPolicy."
            )
        self._setup_lr_schedule()
        self.set_random_seed(self.seed)
        self.policy = self.policy_class(  # type: ignore[assignment]
            self.observation_space,
            self.action_space,
            self.returns_class,
            dict(self.settings.returns),
            self.policy_kwargs,
        ).to(self.device)
        # Everything that shapes the network: files must not depend on the defaults of a later version.
        returns = {**self.returns_class.defaults(), **self.settings.returns}
        self.settings = self.settings.replace(policy_kwargs=self.policy.architecture.layers(), returns=returns)
        risk = self.settings.risk
        self.policy.measure = None if risk == "mean" else parse_risk(risk)
        if self.settings.return_scale != "auto":
            self.policy.unit.fill_(float(self.settings.return_scale))
        self.learner = Learner(
            self.policy.q_net, self.policy.q_net_target, self.policy.unit, self.settings, self.policy.measure
        )
        self.replay_buffer = Replay(
            self.settings.buffer_size,
            self.observation_space,
            self.action_space,
            self.device,
            self.n_envs,
            gamma=self.settings.gamma,
            n_steps=self.settings.n_steps,
        )
        self.exploration = Exploration(int(self.action_space.n))
        self._seed_generators(self.seed)
        self.exploration_rate = self.settings.exploration_initial_eps
        self.exploration_schedule = LinearSchedule(
            self.settings.exploration_initial_eps,
            self.settings.exploration_final_eps,
            max(self.settings.exploration_fraction, 1e-12),
        )
        self._metrics: torch.Tensor | None = None
        self._convert_train_freq()

    def set_random_seed(self, seed: int | None = None) -> None:
        """Seed torch, the environments, exploration and replay."""
        super().set_random_seed(seed)
        if seed is not None and hasattr(self, "exploration"):
            self._seed_generators(seed)

    def _seed_generators(self, seed: int | None) -> None:
        # Spawned, because environments use the seed itself: actions must not correlate with their random numbers.
        replay, exploration = np.random.SeedSequence(seed).spawn(2)
        self.replay_buffer.generator = np.random.default_rng(replay)
        self.exploration.generator = np.random.default_rng(exploration)

    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int | None = 4,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """Learn for a number of environment steps; the arguments are those of Stable-Baselines3."""
        wanted = self.settings.compile
        if wanted == "auto":
            # Steps before an interruption count too, so that a resumed run is compiled like an uninterrupted one.
            steps = total_timesteps + (0 if reset_num_timesteps else self.num_timesteps)
            enough = steps * self._updates_per_step() >= _MIN_UPDATES_TO_COMPILE
            wanted = enough and self.policy.measure is None and can_compile(self.device)
        if wanted and not self.learner.compiled:
            self.learner.compile()
        name = tb_log_name or type(self).__name__
        return super().learn(total_timesteps, callback, log_interval, name, reset_num_timesteps, progress_bar)  # type: ignore

    def _setup_learn(
        self, total_timesteps: int, callback: MaybeCallback = None, reset_num_timesteps: bool = True, *rest: Any
    ) -> tuple[int, BaseCallback]:
        if reset_num_timesteps or self._last_obs is None:
            self.replay_buffer.end_episodes()  # the environments are reset
        with self._environment_errors():
            return super()._setup_learn(total_timesteps, callback, reset_num_timesteps, *rest)

    def _updates_per_step(self) -> float:
        frequency = self.train_freq.frequency if self.train_freq.unit.value == "step" else 1  # type: ignore[union-attr]
        return 1.0 if self.gradient_steps < 0 else self.gradient_steps / (frequency * self.n_envs)

    def train(self, gradient_steps: int, batch_size: int) -> None:
        """Take updates on batches from the replay buffer."""
        if self._n_updates == 0 and self.settings.return_scale == "auto":
            self.policy.unit.fill_(return_scale(self.replay_buffer.returns(self._vec_normalize_env)))
            if self.num_timesteps < _MIN_STEPS_TO_SCALE:
                warnings.warn(
                    f'return_scale="auto" was measured in {self.num_timesteps} steps; got learning_starts '
                    f"{self.learning_starts}. Set return_scale, or increase learning_starts.",
                    stacklevel=2,
                )
        self.policy.set_training_mode(True)
        rate = self.settings.rate(self._current_progress_remaining)
        for _ in range(gradient_steps):
            batch = self.replay_buffer.draw(batch_size, env=self._vec_normalize_env)
            actions = batch.actions - self.policy.first_action if self.policy.first_action else batch.actions
            self._metrics = self.learner.update(batch._replace(actions=actions), rate)
        self._n_updates += gradient_steps

    def _on_step(self) -> None:
        self.exploration_rate = self.exploration_schedule(self._current_progress_remaining)

    def _sample_action(
        self, learning_starts: int, action_noise: Any = None, n_envs: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return exploring actions, which are all random before learning starts."""
        mask = mask_of(self._last_obs)
        if self.num_timesteps < learning_starts or self.exploration_rate >= 1:
            actions = self.exploration.random(n_envs, mask)
        else:
            with torch.no_grad():
                best = self.policy.best(to_tensor(self._last_obs, self.device), self.policy.measure).cpu().numpy()
            actions = self.exploration.mix(best, self.exploration_rate, mask)
        actions = actions + self.policy.first_action
        return actions, actions

    def predict(
        self,
        observation: Any,
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        risk: Risk | None = None,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """Return actions for observations, and the unchanged state.

        Args:
            observation: one, or one per environment.
            state: not used.
            episode_start: not used.
            deterministic: False explores, at the current rate.
            risk: a measure in place of that of the settings, see `cramix.rl.parse_risk`.
        """
        if isinstance(observation, tuple) and len(observation) == 2 and isinstance(observation[1], dict):
            raise ValueError("observation must come without the info; got a tuple of both. Use env.reset()[0].")
        tensor, batched = self.policy.obs_to_tensor(observation)
        measure = self.policy.measure if risk is None else None if risk == "mean" else parse_risk(risk)
        self.policy.set_training_mode(False)
        with torch.no_grad():
            best = self.policy.best(tensor, measure).cpu().numpy()
        if not deterministic:
            mask = mask_of(tensor)
            best = self.exploration.mix(best, self.exploration_rate, None if mask is None else mask.cpu().numpy())
        actions = best + self.policy.first_action
        return (actions if batched else actions[0]), state

    def return_distribution(self, observation: Any) -> NormalMixture:
        """Return the mixture of returns of every action, in units of the rewards.

        Args:
            observation: one, for the batch shape `(actions)`, or one per environment, for `(envs, actions)`.
        """
        tensor, batched = self.policy.obs_to_tensor(
            np.asarray(observation) if isinstance(observation, list) else observation
        )
        self.policy.set_training_mode(False)
        with torch.no_grad():
            mixture = self.policy.q_net(tensor).mixture(self.policy.unit)
        return mixture if batched else mixture[0]

    def _store_transition(
        self, replay_buffer: Any, buffer_action: Any, new_obs: Any, reward: np.ndarray, dones: np.ndarray, infos: Any
    ) -> None:
        if not np.isfinite(reward).all():
            i = int(np.flatnonzero(~np.isfinite(reward))[0])
            raise ValueError(
                f"rewards must be finite; got {reward[i]} from environment {i} at step {self.num_timesteps}. "
                "Fix the environment; the model is intact and can be saved."
            )
        super()._store_transition(replay_buffer, buffer_action, new_obs, reward, dones, infos)

    def collect_rollouts(self, *args: Any, **kwargs: Any) -> RolloutReturn:
        """Step the environments; errors get a note with the step."""
        try:
            with self._environment_errors():
                return super().collect_rollouts(*args, **kwargs)
        except Exception as error:
            error.add_note(f"cramix: after step {self.num_timesteps} of the environments. {_RECOVERY}")
            raise

    @contextmanager
    def _environment_errors(self) -> Iterator[None]:
        """Replace the error of a broken pipe by one that names the cause."""
        try:
            yield
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            raise RuntimeError(f"An environment worker exited at step {self.num_timesteps}. {_RECOVERY}") from error

    def dump_logs(self) -> None:
        """Write the log, with the metrics of the last update."""
        self.logger.record("rollout/exploration_rate", self.exploration_rate)
        if self._metrics is not None:
            for name, value in zip(METRICS, self._metrics.tolist(), strict=True):
                self.logger.record(
                    f"train/{name}", value * (self.policy.unit.item() if name in _SCALED_METRICS else 1.0)
                )
            self.logger.record("train/learning_rate", self.settings.rate(self._current_progress_remaining))
            self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        super().dump_logs()

    def save(  # type: ignore[override]
        self, path: str | os.PathLike | BinaryIO, *unused: Any, acting_only: bool = False, **also_unused: Any
    ) -> None:
        """Write the model to a file, atomically; the file holds JSON and tensors, and no code.

        Args:
            path: of the file, whose folder is created if needed; or an open file.
            acting_only: leave out what only learning needs, for a file a quarter of the size.
            unused: further arguments of Stable-Baselines3's `save`.
            also_unused: the same.
        """
        file.save(self, path, acting_only=acting_only)

    @classmethod
    def load(  # type: ignore[override]
        cls,
        path: str | os.PathLike | BinaryIO,
        env: GymEnv | None = None,
        device: torch.device | str = "auto",
        custom_objects: Mapping[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        **settings: Any,
    ) -> Self:
        """Read a model from a file that `save` wrote.

        Args:
            path: of the file, or an open file.
            env: to continue learning in; None to act only.
            device: of the networks.
            custom_objects: further settings; other names are ignored, as in Stable-Baselines3.
            print_system_info: whether to print versions.
            force_reset: not used; environments are always reset.
            settings: fields of `cramix.rl.Settings` to change; needed for classes and functions of your own, which
                files do not hold.
        """
        if print_system_info:
            get_system_info()
        known = {name: x for name, x in (custom_objects or {}).items() if name in Settings.__dataclass_fields__}
        return file.load(cls, path, env, device, {**known, **settings})

    def set_parameters(
        self,
        load_path_or_dict: str | os.PathLike | BinaryIO | dict[str, Any],
        exact_match: bool = True,
        device: torch.device | str = "auto",
    ) -> None:
        """Load the networks of a file that `save` wrote, or of the result of `get_parameters`."""
        given = load_path_or_dict
        parameters: Any = given if isinstance(given, dict) else {"policy": file.networks(given)}
        super().set_parameters(parameters, exact_match, device)

    def save_replay_buffer(self, path: str | os.PathLike) -> None:  # type: ignore[override]
        """Write the replay buffer to a file."""
        self.replay_buffer.save(path)

    def load_replay_buffer(self, path: str | os.PathLike, truncate_last_traj: bool = True) -> None:  # type: ignore[override]
        """Read the replay buffer from a file."""
        self.replay_buffer.load(path)
        if truncate_last_traj:
            self.replay_buffer.end_episodes()


def _written_out(settings: Settings) -> Signature:
    """Return the signature of an algorithm whose default settings are these."""
    constructor = signature(DistributionalDQN.__init__)
    _, *own = constructor.parameters.values()
    named = [p for p in own if p.kind is not Parameter.VAR_KEYWORD and not p.name.startswith("_")]
    first = [p for p in named if p.kind is not Parameter.KEYWORD_ONLY or p.name == "preset"]
    last = [p for p in named if p not in first]
    return constructor.replace(parameters=[*first, *settings.parameters(), *last])


def return_scale(returns: np.ndarray) -> float:
    """Return a fifth of the root mean square of returns: the unit of a network (docs/rl.md)."""
    size = float(np.sqrt(np.square(returns).mean())) if returns.size else 0.0
    return size / 5 if size > 0 else 1.0
