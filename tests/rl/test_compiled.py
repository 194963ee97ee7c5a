"""Compiled updates: no algorithm adds at indices, and a compiled gradient is that of plain autograd."""

from __future__ import annotations

import subprocess
import sys
from io import BytesIO

import pytest
import torch
from stable_baselines3.common.envs import FakeImageEnv
from torch._dynamo.backends.common import aot_autograd

from cramix.rl import ALGORITHMS, GMDQN
from cramix.rl.learner import can_compile
from tests.rl.learners import batch, compile_with, learner

# In a process of its own: what it guards against may end the process. On two threads, for one adds without atomics.
# Kernels are kept in torch's cache, so that only the first run takes the time to compile them.
GRADIENTS = """
import torch
from torch.func import grad
from cramix.rl.agents.gaussian import JensenTsallisReturns
from cramix.rl.returns import Parts

torch.set_num_threads(2)
torch.manual_seed(0)
layer = JensenTsallisReturns(2, 4, min_scale=0.05)
features, actions = torch.randn(64, 2), torch.randint(4, (64,))
target = Parts(torch.rand(64, 3).softmax(-1), torch.randn(64, 3), torch.rand(64, 3))

def loss(x):
    return layer.loss(layer(x).select(actions), target).mean()

with torch.no_grad():
    compiled = torch.compile(grad(loss), fullgraph=True, dynamic=False)(features)
x = features.clone().requires_grad_()
(truth,) = torch.autograd.grad(loss(x), x)
torch.testing.assert_close(compiled, truth)
print("agree")
"""


@pytest.mark.slow
@pytest.mark.skipif(not can_compile(torch.device("cpu")), reason="there is no C++ compiler")
def test_compiled_gradients_on_two_threads_are_those_of_autograd() -> None:
    done = subprocess.run([sys.executable, "-c", GRADIENTS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "agree\n"), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_no_algorithm_adds_at_indices(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Inductor of torch 2.13 may add at wrong places, see Parts.of. This needs no C++ compiler.
    torch._dynamo.reset()
    called: set[str] = set()

    def look(graph: torch.fx.GraphModule, inputs: object) -> object:
        called.update(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    learn, *_ = learner(algo)
    learn.compiled = True
    compile_with(monkeypatch, aot_autograd(fw_compiler=look))
    learn.update(batch(), 0.1)
    assert learn.compiled
    assert any("addmm" in name for name in called)
    adding = ("index_put", "index_add", "scatter_add", "scatter_reduce", "embedding_dense_backward")
    assert not [name for name in called if any(word in name for word in adding)]


def test_updates_from_images_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    compile_with(monkeypatch, "eager")
    env = FakeImageEnv(screen_height=36, screen_width=36, n_channels=1)
    model = GMDQN("CnnPolicy", env, learning_starts=20, buffer_size=50, batch_size=4, compile=True, device="cpu")
    model.learn(24)
    assert model.learner.compiled
    screens = torch.randint(256, (3, 1, 36, 36), dtype=torch.uint8)
    torch.testing.assert_close(model.q_net.preprocess(screens), screens / 255)


@pytest.mark.parametrize("compiled", [False, True])
def test_features_in_bfloat16_are_rounded_and_all_else_is_float32(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch._dynamo.reset()
    compile_with(monkeypatch, "eager")
    env = FakeImageEnv(screen_height=36, screen_width=36, n_channels=1)

    def learned(dtype: str) -> GMDQN:
        policy = {"features_dtype": dtype}
        settings = {"learning_starts": 20, "buffer_size": 50, "batch_size": 4, "device": "cpu", "seed": 0}
        return GMDQN("CnnPolicy", env, compile=compiled, policy_kwargs=policy, **settings).learn(24)

    rounded, plain = learned("bfloat16"), learned("float32")
    assert rounded.learner.compiled is compiled
    assert {p.dtype for p in rounded.policy.parameters()} == {torch.float32}
    screens = torch.randint(256, (8, 1, 36, 36), dtype=torch.uint8)
    rounded.q_net.load_state_dict(plain.q_net.state_dict())
    with torch.no_grad():
        exact, found = plain.q_net.features(screens), rounded.q_net.features(screens)
    assert found.dtype == torch.float32
    error = (found - exact).norm() / exact.norm()
    assert 1e-4 < error < 1e-2  # bfloat16 has eight bits
    with torch.no_grad():
        assert rounded.q_net(screens).mean().dtype == torch.float32
    file = BytesIO()
    rounded.save(file)
    file.seek(0)
    again = GMDQN.load(file)
    assert again.policy_kwargs["features_dtype"] == "bfloat16"
    assert again.policy._get_constructor_parameters()["features_dtype"] == "bfloat16"  # of `policy.save`
    with torch.no_grad():
        torch.testing.assert_close(again.q_net.features(screens), found, rtol=0, atol=0)


def test_features_in_bfloat16_need_layers() -> None:
    with pytest.raises(ValueError, match="without parameters"):
        GMDQN("MlpPolicy", "CartPole-v1", policy_kwargs={"features_dtype": "bfloat16"})
    with pytest.raises(ValueError, match="features_dtype must be one of"):
        GMDQN("CnnPolicy", FakeImageEnv(), buffer_size=10, policy_kwargs={"features_dtype": "half"})
