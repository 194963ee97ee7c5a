"""Trained agents: from the folder of a run, or from the package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cramix.checks import check_choice
from cramix.cli.refusal import Refusal, refusing

if TYPE_CHECKING:
    from cramix.rl import DistributionalDQN


def read(name: str) -> tuple[DistributionalDQN, str]:
    """Return the agent of a folder of `cramix train`, or a pretrained one, and the environment it was trained in."""
    from cramix.rl import ALGORITHMS, GMDQN, pretrained
    from cramix.rl.folder import read_json

    folder = Path(name)
    if name in pretrained.names() and not folder.is_dir():
        return GMDQN.from_pretrained(name), name
    if not folder.is_dir():
        known = ", ".join(pretrained.names()) or "none yet"
        raise Refusal(f"{name} is neither a folder nor a pretrained agent. Pretrained agents: {known}.")
    if not (folder / "run.json").exists():
        raise Refusal(f"{name} is not the folder of a run: it has no run.json. Use the --out of cramix train.")
    with refusing():
        run = read_json(folder / "run.json", "env", "algo", "interval")
        check_choice("algo", run["algo"], ALGORITHMS)
        if not (folder / "model.zip").exists():
            raise Refusal(f"{name} has no checkpoint yet; the first is written at step {run['interval']}.")
        return ALGORITHMS[run["algo"]].load(folder / "model.zip"), run["env"]


@contextmanager
def environment_errors(name: str) -> Iterator[None]:
    """Translate Gymnasium's errors about an environment that cannot be created."""
    import gymnasium

    try:
        yield
    except gymnasium.error.DependencyNotInstalled as error:
        raise ImportError(f"{name} needs more packages: {error} Or try: pip install 'cramix[rl]'") from None
    except gymnasium.error.UnregisteredEnv as error:
        raise Refusal(f"{name} cannot be created: {error}") from None
