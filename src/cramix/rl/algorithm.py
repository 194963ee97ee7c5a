"""The skeleton of all algorithms here: deep Q-learning of return distributions, for Stable-Baselines3."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Self

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, RolloutReturn
from stable_baselines3.common.utils import LinearSchedule

from cramix.mixture import NormalMixture
from cramix.rl.exploration import Exploration
from cramix.rl.learning.learner import Learner, can_compile
from cramix.rl.learning.objective import METRICS
from cramix.rl.masks import mask_of
from cramix.rl.network import to_tensor
from cramix.rl.policy import CnnPolicy, MlpPolicy, MultiInputPolicy, ReturnPolicy
from cramix.rl.replay import Replay
from cramix.rl.returns import Returns
from cramix.rl.risk import Risk, parse_risk
from cramix.rl.settings import Settings
from cramix.rl.spaces import check_spaces
from cramix.rl.stored import StoredAlgorithm

# Compiling takes as long as it saves in some five to eight thousand updates of a small network.
_WORTH_COMPILING = 20_000


class DistributionalDQN(StoredAlgorithm):
    """Deep Q-learning in which the network predicts the distribution of returns of every action.

    The target is the Bellman operator on the distribution of the best next action: chosen by the online network, judged
    by the target network. Subclasses say which distributions, and which loss compares them.

    Args:
        policy: "MlpPolicy", "CnnPolicy" or "MultiInputPolicy".
        env: an environment with discrete actions, its name, or a vectorised one.
        preset: settings to start from, by name, see `presets`.
        seed: of weights, exploration, draws from memory and environments.
        device: "auto" takes a GPU where there is one.
        verbose: 1 for a table of the log.
        tensorboard_log: folder for TensorBoard.
        stats_window_size: episodes in the means of the log.
        settings: any field of `cramix.rl.Settings`.
    """

    policy_aliases: ClassVar[dict[str, type]] = {
        "MlpPolicy": MlpPolicy,
        "CnnPolicy": CnnPolicy,
        "MultiInputPolicy": MultiInputPolicy,
    }
    returns_class: ClassVar[type[Returns]]
    presets: ClassVar[dict[str, Settings]] = {"default": Settings()}

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
            raise ValueError(
                f"preset must be one of {', '.join(self.presets)}; got {preset!r}. Leave it out for the default."
            )
        self.settings = self.presets[preset].replace(**settings)
        if env is None and _init_setup_model:
            raise ValueError("env must be an environment; got None. To act only, load a model.")
        if isinstance(env, gymnasium.Env):  # before Stable-Baselines3 makes room for what it may not know
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
                f"MultiInputPolicy must see dictionaries; got {self.observation_space}. Use MlpPolicy or CnnPolicy."
            )
        self._setup_lr_schedule()
        self.set_random_seed(self.seed)
        self.policy = self.policy_class(  # type: ignore[assignment]
            self.observation_space,
            self.action_space,
            self.returns_class,
            dict(self.settings.returns),
            **self.policy_kwargs,
        ).to(self.device)
        # All that shapes the network, for a file must not change with the defaults of a later version.
        returns = {**self.returns_class.usual(), **self.settings.returns}
        self.settings = self.settings.replace(policy_kwargs=self.policy.layers, returns=returns)
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
        """Start all random numbers anew: those of torch, of the environments, of exploration and of draws."""
        super().set_random_seed(seed)
        if seed is not None and hasattr(self, "exploration"):
            self._seed_generators(seed)

    def _seed_generators(self, seed: int | None) -> None:
        # Environments are seeded by the seed itself: streams of their own, or chance and choice would be one.
        draws, explores = np.random.SeedSequence(seed).spawn(2)
        self.replay_buffer.generator = np.random.default_rng(draws)
        self.exploration.generator = np.random.default_rng(explores)

    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int | None = 4,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """Learn for so many environment steps; see Stable-Baselines3 for the arguments."""
        wanted = self.settings.compile
        if wanted == "auto":
            # The whole run counts, so that one that was interrupted goes on as it was.
            steps = total_timesteps + (0 if reset_num_timesteps else self.num_timesteps)
            enough = steps * self._updates_per_step() >= _WORTH_COMPILING
            wanted = enough and self.policy.measure is None and can_compile(self.device)
        if wanted and not self.learner.compiled:
            self.learner.compile()
        name = tb_log_name or type(self).__name__
        return super().learn(total_timesteps, callback, log_interval, name, reset_num_timesteps, progress_bar)  # type: ignore

    def _setup_learn(
        self, total_timesteps: int, callback: MaybeCallback = None, reset_num_timesteps: bool = True, *rest: Any
    ) -> tuple[int, BaseCallback]:
        if reset_num_timesteps or self._last_obs is None:
            self.replay_buffer.cut()  # the environments start anew
        with self._in_processes():
            return super()._setup_learn(total_timesteps, callback, reset_num_timesteps, *rest)

    def _updates_per_step(self) -> float:
        frequency = self.train_freq.frequency if self.train_freq.unit.value == "step" else 1  # type: ignore[union-attr]
        return 1.0 if self.gradient_steps < 0 else self.gradient_steps / (frequency * self.n_envs)

    def train(self, gradient_steps: int, batch_size: int) -> None:
        """Take updates from memory."""
        if self._n_updates == 0 and self.settings.return_scale == "auto":
            self.policy.unit.fill_(return_scale(self.replay_buffer.returns(self._vec_normalize_env)))
            if self.num_timesteps < _FEW:
                warnings.warn(
                    f'return_scale="auto" was measured in {self.num_timesteps} steps; got learning_starts '
                    f"{self.learning_starts}. Give return_scale, or let learning start later.",
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
        """Return actions that explore: all of them at random before learning starts."""
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
        """Return actions for observations, and the state as it came.

        Args:
            observation: one, or one of each environment.
            state: not used.
            episode_start: not used.
            deterministic: False also explores, at the present rate.
            risk: judges actions instead of that of the settings, see `cramix.rl.parse_risk`.
        """
        if isinstance(observation, tuple) and len(observation) == 2 and isinstance(observation[1], dict):
            raise ValueError("observation must be one without its info; got a tuple of both. Use env.reset()[0].")
        seen, many = self.policy.obs_to_tensor(observation)
        measure = self.policy.measure if risk is None else None if risk == "mean" else parse_risk(risk)
        self.policy.set_training_mode(False)
        with torch.no_grad():
            best = self.policy.best(seen, measure).cpu().numpy()
        if not deterministic:
            mask = mask_of(seen)
            best = self.exploration.mix(best, self.exploration_rate, None if mask is None else mask.cpu().numpy())
        actions = best + self.policy.first_action
        return (actions if many else actions[0]), state

    def return_distribution(self, observation: Any) -> NormalMixture:
        """Return the mixture of returns of every action, in units of the rewards.

        Args:
            observation: one, for the batch shape `(actions)`, or one of each environment, for `(envs, actions)`.
        """
        seen, many = self.policy.obs_to_tensor(
            np.asarray(observation) if isinstance(observation, list) else observation
        )
        self.policy.set_training_mode(False)
        with torch.no_grad():
            parts = self.policy.q_net(seen)
        mixture = parts.mixture(self.policy.unit)
        if many:
            return mixture
        return NormalMixture(mixture.weights[0], mixture.means[0], mixture.scales[0], validate_args=False)

    def _store_transition(
        self, replay_buffer: Any, buffer_action: Any, new_obs: Any, reward: np.ndarray, dones: np.ndarray, infos: Any
    ) -> None:
        if not np.isfinite(reward).all():
            i = int(np.flatnonzero(~np.isfinite(reward))[0])
            raise ValueError(
                f"rewards must be finite; got {reward[i]} from environment {i} at step {self.num_timesteps}. "
                "Mend the environment; what was learned before is whole and can be saved."
            )
        super()._store_transition(replay_buffer, buffer_action, new_obs, reward, dones, infos)

    def collect_rollouts(self, *args: Any, **kwargs: Any) -> RolloutReturn:
        """Step the environments; an error says when it was."""
        try:
            with self._in_processes():
                return super().collect_rollouts(*args, **kwargs)
        except Exception as error:
            error.add_note(f"cramix: after step {self.num_timesteps} of the environments; {_CURE}")
            raise

    @contextmanager
    def _in_processes(self) -> Iterator[None]:
        """Say in words that an environment's process is there no more."""
        try:
            yield
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            raise RuntimeError(f"an environment's process ended at step {self.num_timesteps}; {_CURE}") from error

    def dump_logs(self) -> None:
        """Write the log, with what the last update looked like."""
        self.logger.record("rollout/exploration_rate", self.exploration_rate)
        if self._metrics is not None:
            for name, value in zip(METRICS, self._metrics.tolist(), strict=True):
                self.logger.record(f"train/{name}", value * (self.policy.unit.item() if name in _IN_UNITS else 1.0))
            self.logger.record("train/learning_rate", self.settings.rate(self._current_progress_remaining))
            self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        super().dump_logs()


_CURE = "the model is whole: save it, or set_env to one that works and learn with reset_num_timesteps=False."
# With fewer steps than this, returns are not known.
_FEW = 10
_IN_UNITS = ("smallest_scale", "value")


def return_scale(returns: np.ndarray) -> float:
    """Return a fifth of the size of returns, the unit of a network (docs/rl.md)."""
    size = float(np.sqrt(np.square(returns).mean())) if returns.size else 0.0
    return size / 5 if size > 0 else 1.0
