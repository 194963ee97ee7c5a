"""Algorithms that are stored in files: what Stable-Baselines3 calls saving and loading, without code in the files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, BinaryIO, Self

import torch
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.utils import get_system_info

from cramix.rl import file
from cramix.rl.exploration import Exploration
from cramix.rl.learning.learner import Learner
from cramix.rl.policy import ReturnPolicy
from cramix.rl.replay import Replay
from cramix.rl.settings import Settings


class StoredAlgorithm(OffPolicyAlgorithm):
    """Goes to files and comes back, see `cramix.rl.file`."""

    # What is in files, besides counts.
    settings: Settings
    policy: ReturnPolicy
    learner: Learner
    exploration: Exploration
    exploration_rate: float
    replay_buffer: Replay

    def save(  # type: ignore[override]
        self, path: str | os.PathLike | BinaryIO, *unused: Any, acting_only: bool = False, **also_unused: Any
    ) -> None:
        """Write the model to a file, whole or not at all; it holds numbers and words, and no code.

        Args:
            path: of the file, whose folder is made if it is not there; or a file that is open.
            acting_only: leave out what only learning needs, for a file a quarter as large.
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
        """Read a model that `save` has written.

        Args:
            path: of the file, or a file that is open.
            env: to go on learning in; None to act only.
            device: where to.
            custom_objects: further settings; names that are none are ignored, as Stable-Baselines3 has it.
            print_system_info: print what versions there are.
            force_reset: not used; environments always start anew.
            settings: changes by name; classes and functions of one's own are not in files and belong here.
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
        """Take the networks of a file that `save` has written, or of what `get_parameters` has returned."""
        given = load_path_or_dict
        parameters: Any = given if isinstance(given, dict) else {"policy": file.networks(given)}
        super().set_parameters(parameters, exact_match, device)

    def save_replay_buffer(self, path: str | os.PathLike) -> None:  # type: ignore[override]
        """Write the memory of transitions to a file."""
        self.replay_buffer.save(path)

    def load_replay_buffer(self, path: str | os.PathLike, truncate_last_traj: bool = True) -> None:  # type: ignore[override]
        """Read the memory of transitions from a file."""
        self.replay_buffer.load(path)
        if truncate_last_traj:
            self.replay_buffer.cut()
