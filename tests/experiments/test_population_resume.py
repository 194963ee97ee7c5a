"""Populations that were killed, at whatever moment, end as those that were not."""

from __future__ import annotations

import functools
import itertools
import json
import multiprocessing
import threading
import time
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv

from cramix.rl import ALGORITHMS
from cramix.rl.training import Run
from experiments.population.checkpoint import Checkpoint, Progress
from experiments.population.joint_training import train_jointly
from experiments.population.memory import Memory
from experiments.population.vectorized import VectorizedLearner
from tests.refusals import refuses
from tests.rl.killing import Killed, kill_at

# The first checkpoint comes before the first update, the second after the memory went round.
SETTINGS = {
    "learning_starts": 50,
    "batch_size": 8,
    "buffer_size": 70,
    "target_update_interval": 3,
    "exploration_fraction": 0.8,
    "fraction_learning_rate": 1e-4,
    "policy_kwargs": {"net_arch": [8], "members": 1},
}
FILES = {"run.json", "model.zip", "result.json"}
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.fixture(autouse=True, scope="module")
def threads():
    """Environments in threads, for processes take seconds to start."""
    context = SimpleNamespace(Process=threading.Thread, Semaphore=threading.Semaphore)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multiprocessing, "get_context", lambda kind: context)
        yield


def runs(seeds=(0, 1), **changes):
    common = {"steps": 120, "interval": 40, "curve_episodes": 1, "episodes": 2, "settings": SETTINGS, **changes}
    return [Run("CartPole-v1", seed=seed, **common) for seed in seeds]


def trained(folder, several=None, report=None, device="cpu"):
    """Train and return all but the time it took: results, and the numbers of the agents."""
    several = several or runs()
    folders = [folder / str(run.seed) for run in several]
    results = train_jointly(several, folders, device, workers=1, report=report)
    for result in results:
        seconds = [row.pop("seconds") for row in result["curve"]] + [result.pop("seconds")]
        assert seconds == sorted(seconds)
    for place in folders:
        assert {path.name for path in place.iterdir()} == FILES
    models = [run.algorithm().load(place / "model.zip") for run, place in zip(several, folders, strict=True)]
    return results, [{name: x.tolist() for name, x in model.policy.state_dict().items()} for model in models]


def step(folder):
    """How far the last checkpoint is."""
    path = folder / "0" / "population.zip"
    if not path.exists():
        return 0
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read("population.json"))["step"]


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("truth"))


def interrupted(folder, monkeypatch, at, several=None, device="cpu"):
    """Train until a step."""
    clock = itertools.count()

    def report(now, figures):
        if now == at:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: float(next(clock)))  # so that report is called at each step
        with pytest.raises(Killed):
            trained(folder, several, report, device)


@pytest.mark.slow
def test_killed_at_every_change_of_a_file(truth, tmp_path, monkeypatch):
    """Two checkpoints, four changes for each result, and the checkpoint is removed; going on from some will do."""
    for moment in itertools.count():
        folder = tmp_path / str(moment)
        if moment in (2, 4, 5, 7, 9):
            continue
        with monkeypatch.context() as patch:
            kill_at(patch, moment)
            try:
                trained(folder)
            except Killed:
                pass
            else:
                break
        assert step(folder) == min(40 * moment, 80)
        assert trained(folder) == truth
    assert moment == 11


@pytest.mark.parametrize("at", [1, 41, 80, 119])
def test_killed_between_checkpoints(truth, at, tmp_path, monkeypatch):
    interrupted(tmp_path, monkeypatch, at)
    assert step(tmp_path) == (at - 1) // 40 * 40  # at most one interval is lost
    assert trained(tmp_path) == truth


def test_killed_twice(truth, tmp_path, monkeypatch):
    interrupted(tmp_path, monkeypatch, 60)
    interrupted(tmp_path, monkeypatch, 100)
    assert step(tmp_path) == 80
    assert trained(tmp_path) == truth


@needs_gpu
def test_killed_on_a_gpu(tmp_path, monkeypatch):
    one = trained(tmp_path / "truth", device="cuda")
    interrupted(tmp_path / "killed", monkeypatch, 100, device="cuda")
    other = trained(tmp_path / "killed", device="cuda")
    for ours, others in zip(one[1], other[1], strict=True):
        for name in ours:
            np.testing.assert_allclose(ours[name], others[name], rtol=1e-3, atol=1e-4)


def test_a_checkpoint_of_other_runs_is_ignored(truth, tmp_path, monkeypatch):
    interrupted(tmp_path, monkeypatch, 100, runs((0, 2)))
    assert step(tmp_path) == 80
    assert trained(tmp_path) == truth


def test_no_checkpoint_without_an_interval(tmp_path, monkeypatch):
    monkeypatch.setattr(Checkpoint, "write", None)
    trained(tmp_path, runs(steps=40))


def test_what_a_killed_program_left_half_written_is_removed(tmp_path):
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / ".population.zip.a1b2c3").write_bytes(b"half")
    trained(tmp_path, runs((0,), steps=20))


@pytest.fixture
def made(tmp_path):
    """Make a checkpoint at step 40, and its tensors."""

    def make(size=70, seed=0):
        model = ALGORITHMS["gmdqn"]("MlpPolicy", "CartPole-v1", seed=seed, device="cpu", **SETTINGS)
        learner, generator = VectorizedLearner([model] * 2), torch.Generator().manual_seed(seed)
        memory = Memory(2, 4, size, 0.9, 3, torch.device("cpu"))
        for _ in range(80):
            memory.add(torch.randn(2, 12, generator=generator))
        return Checkpoint(tmp_path, runs(), learner, memory, generator)

    return make


def test_numbers_are_copied_to_where_others_were(made):
    """As graphs that are recorded need it."""
    one, other = made(seed=0), made(seed=1)
    one.learner.update({name: torch.ones_like(x) for name, x in one.learner.parameters.items()}, 1e-3)
    one.write(Progress(80, 1.5, [[{"step": 80}], []]))
    before = {name: x.data_ptr() for name, x in other._tensors(80).items()}
    counters = other.memory.position.data_ptr(), other.memory.filled.data_ptr()
    assert other.restore() == (80, 1.5, [[{"step": 80}], []])
    for name, x in other._tensors(80).items():
        assert x.data_ptr() == before[name]
        assert torch.equal(x, one._tensors(80)[name])
    assert counters == (other.memory.position.data_ptr(), other.memory.filled.data_ptr())
    assert (other.memory.position, other.memory.filled) == (one.memory.position, one.memory.filled) == (10, 70)
    assert torch.rand(1, generator=other.generator) == torch.rand(1, generator=one.generator)


def test_damaged_checkpoints_are_said_as_such(made):
    one = made()
    one.write(Progress(80, 1.5, [[], []]))
    whole = one.path.read_bytes()
    for content in (b"", whole[:-9], whole[: len(whole) // 2], whole[9000:], whole[:5000] + b"xyz" + whole[5003:]):
        one.path.write_bytes(content)
        refuses(one.restore, "population.zip", "", "must be an intact checkpoint")
    with zipfile.ZipFile(one.path, "w") as archive:
        archive.writestr("population.json", "[]")
    refuses(one.restore, "population.zip", "", "must be an intact checkpoint")


def test_a_checkpoint_of_other_shapes_is_refused(made):
    made().write(Progress(80, 1.5, [[], []]))
    refuses(made(size=60).restore, "population.zip", "memory of shape (2, 70, 12) instead of (2, 60, 12)")


@pytest.mark.parametrize("place", ["step", "reset"])
def test_observations_must_be_finite(place, tmp_path, monkeypatch):
    calls, real = itertools.count(), getattr(CartPoleEnv, place)

    @functools.wraps(real)
    def broken(self, *args, **also):
        seen, *rest = real(self, *args, **also)
        return np.full_like(seen, np.nan if next(calls) > 5 else 0), *rest

    monkeypatch.setattr(CartPoleEnv, place, broken)
    refuses(lambda: trained(tmp_path), "observations", "nan", "must be finite")
