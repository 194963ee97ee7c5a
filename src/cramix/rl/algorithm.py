"""The base of all algorithms: deep Q-learning of return distributions, for Stable-Baselines3."""

from __future__ import annotations

import copy
import inspect
import os
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, ClassVar, Self

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, RolloutReturn, Schedule
from stable_baselines3.common.utils import FloatSchedule, LinearSchedule, get_system_info
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from cramix.checks import check_integer
from cramix.mixture import NormalMixture
from cramix.notebook import in_notebook
from cramix.rl import file
from cramix.rl.exploration import Exploration
from cramix.rl.learner import Learner, can_compile
from cramix.rl.masks import check_normalization, mask_of
from cramix.rl.network import ReturnNetwork, to_tensor
from cramix.rl.objective import METRICS
from cramix.rl.policy import CnnPolicy, MlpPolicy, MultiInputPolicy, ReturnPolicy
from cramix.rl.progress import with_bar
from cramix.rl.replay import Replay, Transitions, returns_in, to_transitions
from cramix.rl.returns import Returns
from cramix.rl.risk import Risk, parse_risk
from cramix.rl.settings import CHECKED, FIXED, check_names, check_setting
from cramix.rl.spaces import check_spaces

# Below this number of updates of a small network, compiling takes longer than it saves (benchmarks/reinforcement.md).
MIN_UPDATES_TO_COMPILE = 5_000
# The unit of returns is measured again while there were fewer steps than this, each time their number has doubled, ...
_STEPS_TO_SCALE = 1000
# ... and later when returns have grown by this factor.
_GROWTH = 4.0
# Metrics in units of the network.
_SCALED_METRICS = ("smallest_scale", "value")
_RECOVERY = (
    "The model is intact: save it, or call set_env with a working environment and learn with reset_num_timesteps=False."
)


class DistributionalDQN(OffPolicyAlgorithm):
    """Deep Q-learning in which the network predicts the return distribution of every action.

    The target is the Bellman operator applied to the distribution of the best next action, which the online network
    selects and the target network evaluates. Subclasses define the kind of distributions and the loss between them.

    The arguments up to `device` are those of Stable-Baselines3's DQN, in its order. All settings are attributes. If one
    is changed later, the change takes effect; those that shape networks or the replay buffer raise an error.

    Args:
        policy: "MlpPolicy", "CnnPolicy" or "MultiInputPolicy".
        env: an environment with discrete actions, its name, or a vectorised environment.
        learning_rate: initial rate; or a function of the remaining progress, which falls from 1 to 0.
        buffer_size: number of transitions in the replay buffer.
        learning_starts: random steps before the first update.
        batch_size: number of transitions of an update.
        tau: fraction by which the target network moves towards the online network; 1 copies it. None is 0.005 at
            every step, and 1 with a longer `target_update_interval`.
        gamma: discount factor.
        train_freq: environment steps (of all environments at once) between updates, or `(n, "episode")`.
        gradient_steps: updates each time; -1 takes one for each step.
        replay_buffer_class: a buffer of Stable-Baselines3, such as `HerReplayBuffer`; None is
            `cramix.rl.replay.Replay`.
        replay_buffer_kwargs: its further arguments.
        optimize_memory_usage: store every observation once; needs
            `replay_buffer_kwargs={"handle_timeout_termination": False}`.
        n_steps: number of rewards in a target before it bootstraps from the network; a `replay_buffer_class` has its
            own.
        target_update_interval: environment steps between updates of the target network.
        exploration_fraction: fraction of the run in which exploration falls from its initial to its final rate.
        exploration_initial_eps: initial rate of random actions.
        exploration_final_eps: final rate of random actions.
        max_grad_norm: gradients are clipped to this norm; None does not clip them.
        stats_window_size: number of episodes that the log averages over.
        tensorboard_log: folder for TensorBoard.
        policy_kwargs: arguments of the policy, `cramix.rl.policy.ReturnPolicy`: `net_arch`, `activation_fn`,
            `optimizer_class`, `members`, ...
        verbose: 1 prints the log.
        seed: of weights, exploration, replay and environments.
        device: "auto" takes a GPU if there is one.
        final_learning_rate: the rate falls linearly to this fraction of `learning_rate`; 1 keeps it constant. It has no
            effect on a function.
        fraction_learning_rate: initial rate of the layers that predict weights; None is that of the algorithm.
        return_scale: rewards are divided by it, because the steps of the optimiser are of a fixed size and returns are
            not; "auto" measures returns before learning starts, and again if they grow.
        risk: the measure that makes an action the best: "mean", "cvar:0.1", "expectile:0.3", "quantile:0.5", or a
            function of a mixture.
        compile: whether the update is compiled: True, False, or "auto": in long runs, if there is a compiler.
        returns: options of the kind of return distribution.

    Example:
        >>> from cramix.rl import GMDQN
        >>> model = GMDQN("MlpPolicy", "CartPole-v1", seed=0, learning_starts=50, policy_kwargs={"net_arch": [16]})
        >>> isinstance(model, DistributionalDQN), model.learn(100).predict([[0.0, 0.0, 0.0, 0.0]])[0].shape
        (True, (1,))
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": MlpPolicy,
        "CnnPolicy": CnnPolicy,
        "MultiInputPolicy": MultiInputPolicy,
    }
    returns_class: ClassVar[type[Returns]]
    # "atari" is for images with many steps: one network, few updates, and every frame stored once.
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "atari": {
            "learning_rate": 3e-4,
            "buffer_size": 80_000,
            "learning_starts": 10_000,
            "batch_size": 32,
            "tau": 0.0025,
            "gamma": 0.99,
            "train_freq": 2,
            "optimize_memory_usage": True,
            "replay_buffer_kwargs": {"handle_timeout_termination": False},
            "exploration_final_eps": 0.01,
            "policy_kwargs": {"members": 1},
        },
    }
    policy: ReturnPolicy
    exploration_schedule: Schedule

    def __init__(
        self,
        policy: str | type[ReturnPolicy],
        env: GymEnv | str | None,
        learning_rate: float | Schedule = 5e-4,
        buffer_size: int = 50_000,
        learning_starts: int = 1000,
        batch_size: int = 64,
        tau: float | None = None,
        gamma: float = 0.995,
        train_freq: int | tuple[int, str] = 1,
        gradient_steps: int = 1,
        replay_buffer_class: type[ReplayBuffer] | None = None,
        replay_buffer_kwargs: dict[str, Any] | None = None,
        optimize_memory_usage: bool = False,
        n_steps: int = 3,
        target_update_interval: int = 1,
        exploration_fraction: float = 0.1,
        exploration_initial_eps: float = 1.0,
        exploration_final_eps: float = 0.05,
        max_grad_norm: float | None = 10.0,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: torch.device | str = "auto",
        _init_setup_model: bool = True,
        *,
        final_learning_rate: float = 0.01,
        fraction_learning_rate: float | None = None,
        return_scale: float | str = "auto",
        risk: Risk = "mean",
        compile: bool | str = "auto",
        returns: dict[str, Any] | None = None,
    ):
        if env is None and _init_setup_model:
            raise ValueError("env must be an environment; got None. Use load for a model that only acts.")
        # Before Stable-Baselines3 allocates for spaces it does not know; other actions it refuses itself.
        if isinstance(env, gymnasium.Env) and isinstance(env.action_space, spaces.Discrete):
            check_spaces(env.observation_space, env.action_space)
        self.final_learning_rate = final_learning_rate
        super().__init__(
            policy,
            env,  # type: ignore[arg-type]
            learning_rate,
            buffer_size,
            learning_starts,
            batch_size,
            tau,  # type: ignore[arg-type]
            gamma,
            train_freq,
            gradient_steps,
            replay_buffer_class=replay_buffer_class,
            replay_buffer_kwargs=replay_buffer_kwargs,
            optimize_memory_usage=optimize_memory_usage,
            n_steps=n_steps,
            policy_kwargs=policy_kwargs,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            device=device,
            seed=seed,
            sde_support=False,
            supported_action_spaces=(spaces.Discrete,),
            support_multi_env=True,
        )
        self.target_update_interval = target_update_interval
        self.exploration_initial_eps = exploration_initial_eps
        self.exploration_final_eps = exploration_final_eps
        self.exploration_fraction = exploration_fraction
        self.max_grad_norm = max_grad_norm
        self.fraction_learning_rate = fraction_learning_rate
        self.return_scale = return_scale
        self.risk = risk
        self.compile = compile
        self.returns = returns
        self.exploration_rate = exploration_initial_eps
        self._n_calls = 0  # steps of all environments at once, for the target network
        self._scaled_at = 0  # step of the last measurement of returns; 0 if none was possible
        if _init_setup_model:
            self._setup_model()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; settings are checked and take effect."""
        if name not in _SETTINGS:  # the usual case, several times per step
            object.__setattr__(self, name, value)
            return
        value = check_setting(name, value)
        if name in FIXED and "policy" in vars(self) and vars(self).get(name) != value:
            raise AttributeError(f"{name} must be set when the model is created; got {value!r}. Create another model.")
        super().__setattr__(name, value)
        depends = _DEPENDENTS.get(name)
        if depends is not None and "policy" in vars(self):
            getattr(self, depends)()

    @classmethod
    def preset(cls, name: str = "default", **changes: Any) -> dict[str, Any]:
        """Return arguments of the constructor.

        Args:
            name: "default", or a key of `presets`: "atari", and "paper" for `GMDQN`.
            changes: further arguments; dictionaries are merged with those of the preset.

        Example:
            >>> from cramix.rl import GMDQN
            >>> GMDQN.preset("paper", gamma=0.9)["gamma"]
            0.9
        """
        known = {"default": {}, **cls.presets}
        if name not in known:
            raise ValueError(f'preset must be one of {", ".join(known)}; got {name!r}. Try "default".')
        _, _, *parameters = (x for x in inspect.signature(cls).parameters if not x.startswith("_"))
        check_names(cls.__name__, changes, parameters)
        chosen = copy.deepcopy(known[name])
        merged = {
            key: {**chosen[key], **x} if isinstance(chosen.get(key), Mapping) and isinstance(x, Mapping) else x
            for key, x in changes.items()
        }
        return {**chosen, **merged}

    def _setup_model(self) -> None:
        check_spaces(self.observation_space, self.action_space)
        assert isinstance(self.action_space, spaces.Discrete)
        if issubclass(self.policy_class, MultiInputPolicy) and not isinstance(self.observation_space, spaces.Dict):
            raise ValueError(
                f"MultiInputPolicy must observe dictionaries; got {self.observation_space}. Use MlpPolicy or CnnPolicy."
            )
        _, _, _, *known = inspect.signature(self.policy_class).parameters.values()
        if not any(p.kind is p.VAR_KEYWORD for p in known):
            check_names("policy_kwargs", self.policy_kwargs, [p.name for p in known if p.kind is not p.KEYWORD_ONLY])
        self._setup_lr_schedule()
        self.set_random_seed(self.seed)
        policy: Any = self.policy_class
        self.policy = policy(
            self.observation_space,
            self.action_space,
            self.lr_schedule,
            **self.policy_kwargs,
            returns_class=self.returns_class,
            returns=self.returns,
            fraction_learning_rate=self.fraction_learning_rate,
        ).to(self.device)
        self.learner = Learner(self.policy)
        self._setup_risk()
        if self.return_scale != "auto":
            self.policy.unit.fill_(float(self.return_scale))
        if self.replay_buffer is None:
            self.replay_buffer = self._make_replay_buffer()
        self.exploration = Exploration(int(self.action_space.n))
        self._seed_generators(self.seed)
        self._setup_exploration()
        if self.n_envs > self.target_update_interval > 1:
            warnings.warn(
                f"target_update_interval must be at least the number of environments, {self.n_envs}; got "
                f"{self.target_update_interval}. The target network is updated after every step of all of them.",
                stacklevel=2,
            )

    @property
    def tau(self) -> float:
        """Fraction by which the target network moves; by default, one that moves rarely is copied."""
        if self._tau is None:
            return 0.005 if self.target_update_interval == 1 else 1.0
        return self._tau

    @tau.setter
    def tau(self, tau: float | None) -> None:
        self._tau = tau

    @property
    def stats_window_size(self) -> int:
        """Number of episodes that the log averages over."""
        return self._stats_window_size

    @stats_window_size.setter
    def stats_window_size(self, size: int) -> None:
        check_integer("stats_window_size", size, 1)
        self._stats_window_size = size
        for name in ("ep_info_buffer", "ep_success_buffer"):
            if vars(self).get(name) is not None:
                setattr(self, name, deque(getattr(self, name), maxlen=size))

    @property
    def q_net(self) -> ReturnNetwork:
        """The online network."""
        return self.policy.q_net

    @property
    def q_net_target(self) -> ReturnNetwork:
        """The target network."""
        return self.policy.q_net_target

    def _make_replay_buffer(self) -> ReplayBuffer:
        kind, kwargs = self.replay_buffer_class, dict(self.replay_buffer_kwargs)
        if kind is None or issubclass(kind, NStepReplayBuffer):
            if taken := kwargs.keys() & {"n_steps", "gamma"}:
                raise ValueError(
                    f"replay_buffer_kwargs must not have settings of the model; got {', '.join(sorted(taken))}. "
                    "Use the arguments n_steps and gamma."
                )
            kwargs |= {"n_steps": self.n_steps, "gamma": self.gamma}
        elif self.n_steps > 1:
            warnings.warn(
                f"n_steps={self.n_steps} has no effect with replay_buffer_class={kind.__name__}. Use n_steps=1, and "
                'replay_buffer_kwargs={"n_steps": ...} if the buffer has such an argument.',
                stacklevel=2,
            )
        if kind is not None and issubclass(kind, HerReplayBuffer):
            kwargs["env"] = self.env
        return (kind or Replay)(
            self.buffer_size,
            self.observation_space,
            self.action_space,
            device=self.device,
            n_envs=self.n_envs,
            optimize_memory_usage=self.optimize_memory_usage,
            **kwargs,
        )

    def _setup_lr_schedule(self) -> None:
        rate = self.learning_rate
        self.lr_schedule = (
            FloatSchedule(rate) if callable(rate) else LinearSchedule(rate, rate * self.final_learning_rate, 1.0)
        )

    def _update_learning_rate(self, optimizers: Any) -> None:
        """Set the learning rate of every group of parameters: a fixed multiple of that of the schedule."""
        rate = self.lr_schedule(self._current_progress_remaining)
        self.logger.record("train/learning_rate", rate)
        for optimizer in optimizers if isinstance(optimizers, list) else [optimizers]:
            for group in optimizer.param_groups:
                group["lr"] = rate * group.get("rate_factor", 1.0)

    def _setup_exploration(self) -> None:
        self.exploration_schedule = LinearSchedule(
            self.exploration_initial_eps, self.exploration_final_eps, max(self.exploration_fraction, 1e-12)
        )

    def _setup_risk(self) -> None:
        self.policy.set_risk(self.risk)

    def _setup_unit(self) -> None:
        if self.return_scale != "auto":
            self.policy.rescale(float(self.return_scale))

    def _setup_buffer(self) -> None:
        if isinstance(self.replay_buffer, NStepReplayBuffer):
            self.replay_buffer.gamma, self.replay_buffer.n_steps = self.gamma, self.n_steps

    def set_random_seed(self, seed: int | None = None) -> None:
        """Seed torch, the environments, exploration and replay."""
        super().set_random_seed(seed)
        if seed is not None and hasattr(self, "exploration"):
            self._seed_generators(seed)

    def _seed_generators(self, seed: int | None) -> None:
        # Spawned, because environments use the seed itself: actions must not correlate with their random numbers.
        replay, exploration = np.random.SeedSequence(seed).spawn(2)
        if isinstance(self.replay_buffer, Replay):
            self.replay_buffer.generator = np.random.default_rng(replay)
        self.exploration.generator = np.random.default_rng(exploration)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without what belongs to a process: open files of the log."""
        return {name: x for name, x in vars(self).items() if name != "_logger"} | {"_custom_logger": False}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if isinstance(self.replay_buffer, HerReplayBuffer) and self.env is not None:  # it leaves out the environment
            self.replay_buffer.set_env(self.env)

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
        wanted = self.compile
        if wanted == "auto":
            wanted = self.learner.compiled or self.is_worth_compiling(total_timesteps)
        self.learner.compiled = bool(wanted)
        if wanted and self.learner.is_new and (self.verbose or progress_bar):
            print("The first update is compiled, which takes some seconds.")
        name = tb_log_name or type(self).__name__
        if progress_bar and in_notebook():
            callback, progress_bar = with_bar(callback), False
        return super().learn(total_timesteps, callback, log_interval, name, reset_num_timesteps, progress_bar)  # type: ignore[arg-type]

    def is_worth_compiling(self, steps: int) -> bool:
        """Whether compiling the update saves time in a number of environment steps, and is possible."""
        enough = steps * self._updates_per_step() >= MIN_UPDATES_TO_COMPILE
        return enough and not self.policy.has_statistics and can_compile(self.device)

    def _setup_learn(
        self, total_timesteps: int, callback: MaybeCallback = None, reset_num_timesteps: bool = True, *rest: Any
    ) -> tuple[int, BaseCallback]:
        if (reset_num_timesteps or self._last_obs is None) and isinstance(self.replay_buffer, Replay):
            self.replay_buffer.end_episodes()  # the environments are reset
        check_normalization(self._vec_normalize_env)
        with self._environment_errors():
            return super()._setup_learn(total_timesteps, callback, reset_num_timesteps, *rest)

    def _updates_per_step(self) -> float:
        every: Any = self.train_freq
        frequency = every.frequency if every.unit.value == "step" else 1
        return 1.0 if self.gradient_steps < 0 else self.gradient_steps / (frequency * self.n_envs)

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Take updates on batches from the replay buffer."""
        assert self.replay_buffer is not None
        if self.return_scale == "auto":
            self._measure_unit()
        if self.learner.policy is not self.policy:
            self.learner = Learner(self.policy, self.learner.compiled)
        self._update_learning_rate(self.policy.optimizer)
        self.policy.recalibration.clear()  # it belongs to the network before this update
        self.policy.set_training_mode(True)
        update, limit = self.learner.update, self.max_grad_norm
        metrics = [update(self._sample(batch_size), limit) for _ in range(gradient_steps)]
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        means = metrics[0] if len(metrics) == 1 else torch.stack(metrics).mean(0)
        unit = float(self.policy.unit)
        for name, value in zip(METRICS, means.tolist(), strict=True):
            self.logger.record(f"train/{name}", value * (unit if name in _SCALED_METRICS else 1.0))

    def _sample(self, batch_size: int) -> Transitions:
        buffer, env, first_action = self.replay_buffer, self._vec_normalize_env, self.policy.first_action
        assert buffer is not None
        if type(buffer) is Replay and "sample" not in vars(buffer):  # nobody has replaced the method
            return buffer.transitions(batch_size, env, first_action)
        return to_transitions(buffer.sample(batch_size, env=env), self.gamma, first_action)

    def _measure_unit(self) -> None:
        """Choose the unit of returns by those in the replay buffer: at the start, and again when they have grown."""
        step, last = self.num_timesteps, self._scaled_at
        if step < 2 * last:
            return
        assert self.replay_buffer is not None
        if not self.replay_buffer.rewards.any():  # all predictions that are right are 0, in any unit
            return
        unit = return_scale(returns_in(self.replay_buffer, self.gamma, self._vec_normalize_env))
        if last < _STEPS_TO_SCALE or unit > _GROWTH * float(self.policy.unit):
            self.policy.rescale(unit)
        if not last and self._n_updates:
            # All rewards so far were 0, and scales that have shrunk to 0 have no gradient.
            self.policy.restart_returns()
        self._scaled_at = step

    def _on_step(self) -> None:
        self._n_calls += 1
        if self._n_calls % max(self.target_update_interval // self.n_envs, 1) == 0:
            self.learner.update_target(self.tau)
        self.exploration_rate = self.exploration_schedule(self._current_progress_remaining)
        self.logger.record("rollout/exploration_rate", self.exploration_rate)

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
        return (actions if batched else actions.squeeze(0)), state

    def return_distribution(self, observation: Any) -> NormalMixture:
        """Return the mixture of returns of every action, in units of the rewards; see `cramix.rl.calibrate`.

        Args:
            observation: one, for the batch shape `(actions)`, or one per environment, for `(envs, actions)`.
        """
        tensor, batched = self.policy.obs_to_tensor(
            np.asarray(observation) if isinstance(observation, list) else observation
        )
        self.policy.set_training_mode(False)
        with torch.no_grad():
            mixture = self.policy.returns(tensor)
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

    def save(  # type: ignore[override]
        self,
        path: str | os.PathLike | BinaryIO,
        exclude: Iterable[str] | None = None,
        include: Iterable[str] | None = None,
        *,
        acting_only: bool = False,
    ) -> None:
        """Write the model to a file, atomically; the file holds JSON and tensors, and no code.

        Args:
            path: of the file, whose folder is created if needed; or an open file.
            exclude: settings to leave out; the loaded model has their defaults.
            include: settings of `exclude` to keep after all.
            acting_only: leave out what only learning needs, for a file a quarter of the size.
        """
        file.save(self, path, exclude or (), include or (), acting_only=acting_only)

    @classmethod
    def load(  # type: ignore[override]
        cls,
        path: str | os.PathLike | BinaryIO,
        env: GymEnv | None = None,
        device: torch.device | str = "auto",
        custom_objects: Mapping[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        **changes: Any,
    ) -> Self:
        """Read a model from a file that `save` wrote.

        Args:
            path: of the file, or an open file.
            env: to continue learning in; None to act only.
            device: of the networks.
            custom_objects: further arguments; names that are none are ignored, as in Stable-Baselines3.
            print_system_info: whether to print versions.
            force_reset: must be True: files hold no observations, so environments are reset.
            changes: arguments of the constructor to change; needed for classes and functions of your own, which files
                do not hold.
        """
        if not force_reset:
            raise ValueError("force_reset must be True, because files hold no observations; got False.")
        if print_system_info:
            get_system_info()
        parameters = inspect.signature(cls).parameters
        check_names("load", changes, parameters)
        known = {name: x for name, x in (custom_objects or {}).items() if name in parameters}
        return file.load(cls, path, env, device, {**known, **changes})

    def set_parameters(
        self,
        load_path_or_dict: str | os.PathLike | BinaryIO | dict[str, Any],
        exact_match: bool = True,
        device: torch.device | str = "auto",
    ) -> None:
        """Load the networks of a file that `save` wrote, or of the result of `get_parameters`."""
        given = load_path_or_dict
        # A copy: an optimiser would share its state with the one it comes from.
        parameters: Any = copy.deepcopy(given) if isinstance(given, dict) else {"policy": file.networks(given)}
        if "policy.optimizer" not in parameters and not isinstance(given, dict):
            exact_match = False
        super().set_parameters(parameters, exact_match, device)

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return ["policy", "policy.optimizer"], []

    def save_replay_buffer(self, path: str | os.PathLike | BinaryIO) -> None:  # type: ignore[override]
        """Write the replay buffer to a file: without code if it is that of the package, else as Stable-Baselines3."""
        if isinstance(self.replay_buffer, Replay):
            self.replay_buffer.save(path)
        else:
            super().save_replay_buffer(path)  # type: ignore[arg-type]

    def load_replay_buffer(self, path: str | os.PathLike | BinaryIO, truncate_last_traj: bool = True) -> None:  # type: ignore[override]
        """Read the replay buffer from a file that `save_replay_buffer` wrote."""
        if not issubclass(self.replay_buffer_class or Replay, Replay):
            return super().load_replay_buffer(path, truncate_last_traj)  # type: ignore[arg-type]
        buffer = self._make_replay_buffer() if self.replay_buffer is None else self.replay_buffer
        assert isinstance(buffer, Replay)
        buffer.load(path)
        buffer.device = self.device
        self.replay_buffer = buffer
        buffer.ends_at_next_step = truncate_last_traj
        return None


def return_scale(returns: np.ndarray) -> float:
    """Return a fifth of the root mean square of the returns that are not 0: the unit of a network (docs/rl.md)."""
    found = returns[returns != 0]
    return float(np.sqrt(np.square(found).mean())) / 5 if found.size else 1.0


# What to do when a setting of a model is changed.
_DEPENDENTS = {
    **dict.fromkeys(("learning_rate", "final_learning_rate"), "_setup_lr_schedule"),
    **dict.fromkeys(("exploration_fraction", "exploration_initial_eps", "exploration_final_eps"), "_setup_exploration"),
    **dict.fromkeys(("gamma", "n_steps"), "_setup_buffer"),
    "return_scale": "_setup_unit",
    "risk": "_setup_risk",
}
_SETTINGS = frozenset({*CHECKED, *FIXED, *_DEPENDENTS})
