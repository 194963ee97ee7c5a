"""Agents in small files, agents that come with the package, and episodes to look at."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv

from cramix.rl import ALGORITHMS, C51, GMDQN, MaskedActions, evaluate_calibration, pretrained
from cramix.rl.evaluation import action_names, evaluate, make_visible, play
from tests.refusals import refuses

SMALL = {"seed": 0, "learning_starts": 50, "policy_kwargs": {"net_arch": [32]}, "device": "cpu"}
STATES = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def model() -> GMDQN:
    return GMDQN("MlpPolicy", "CartPole-v1", **SMALL).learn(200)


@pytest.fixture
def shelf(tmp_path: Path, model: GMDQN, monkeypatch: pytest.MonkeyPatch) -> Path:
    model.save(tmp_path / "CartPole-v1.zip", acting_only=True)
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_file_for_acting_acts_the_same_and_is_small(name: str, tmp_path: Path) -> None:
    model = ALGORITHMS[name]("MlpPolicy", "CartPole-v1", **SMALL).learn(100)
    model.save(tmp_path / "all.zip")
    model.save(tmp_path / "acting.zip", acting_only=True)
    sizes = {kind: (tmp_path / f"{kind}.zip").stat().st_size for kind in ("all", "acting")}
    numbers = 4 * sum(p.numel() for p in model.policy.q_net.parameters())
    assert sizes["all"] - sizes["acting"] > 2.9 * numbers  # the other network, and two moments of Adam
    read = type(model).load(tmp_path / "acting.zip", device="cpu")
    ours, theirs = model.return_distribution(STATES), read.return_distribution(STATES)
    for part in ("weights", "means", "scales"):
        assert torch.equal(getattr(ours, part), getattr(theirs, part))
    online, target = (net.state_dict() for net in (read.policy.q_net, read.policy.q_net_target))
    assert all(torch.equal(x, target[key]) for key, x in online.items())
    ahead = model.policy.q_net.state_dict(), model.policy.q_net_target.state_dict()
    assert not torch.equal(*(state["each.0.0.0.weight"] for state in ahead))  # there was something to lose


def test_a_pretrained_agent_acts_and_learns_on(model: GMDQN, shelf: Path) -> None:
    agent = GMDQN.from_pretrained("CartPole-v1", device="cpu")
    assert (agent.predict(STATES, deterministic=True)[0] == model.predict(STATES, deterministic=True)[0]).all()
    agent = GMDQN.from_pretrained("CartPole-v1", "CartPole-v1", learning_starts=20, exploration_initial_eps=0.1)
    before = agent.return_distribution(STATES).means
    unit = agent.policy.unit.item()
    agent.learn(60)
    assert not torch.equal(before, agent.return_distribution(STATES).means)
    assert agent.policy.unit.item() == unit  # the returns of a good agent are no new scale for its numbers


def test_unknown_agents_are_refused_with_those_there_are(shelf: Path) -> None:
    assert pretrained.names() == ["CartPole-v1"]
    refuses(lambda: GMDQN.from_pretrained("Pong-v5"), "name", "'Pong-v5'")
    with pytest.raises(ValueError, match="There are: CartPole-v1"):
        GMDQN.from_pretrained("Pong-v5")
    with pytest.raises(ValueError, match="must hold a C51; got a GMDQN"):
        C51.load(shelf / "CartPole-v1.zip")


def test_an_episode_is_the_one_that_evaluation_plays(model: GMDQN) -> None:
    episode = play(model, make_visible("CartPole-v1"), seed=3)
    assert episode.score == evaluate(model, "CartPole-v1", 1, seed=3)[0]
    assert episode.names == ["left", "right"]
    steps = [moment.step for moment in episode.moments]
    assert steps[:-1] == list(range(0, steps[-1], 3))
    assert episode.rate == pytest.approx(50 / 3)
    for moment in episode.moments[:-1]:
        assert moment.action == int(moment.returns.mean.argmax())
        assert moment.score == moment.step  # one for every step
    first, last = episode.moments[0], episode.moments[-1]
    assert last.action is None
    env = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    seen, _ = env.reset(seed=1_000_003)
    np.testing.assert_array_equal(first.frame, env.render())
    assert torch.equal(first.returns.means, model.return_distribution(seen).means)
    env.close()
    assert (last.frame != first.frame).any()


def test_every_step_of_an_episode_knows_the_return_that_followed(model: GMDQN) -> None:
    episode = play(model, make_visible("CartPole-v1"), seed=3, every=1)
    steps = len(episode.moments) - 1
    assert [moment.step for moment in episode.moments] == list(range(steps + 1))
    assert episode.rate == 50
    assert (episode.gamma, episode.risk) == (model.gamma, "mean")
    assert episode.score == steps < 400  # it fell, so every return is known
    for moment in episode.moments:
        assert moment.realised == pytest.approx(sum(model.gamma**i for i in range(steps - moment.step)))
        assert moment.allowed is None


def test_a_truncated_episode_goes_on_with_what_the_agent_expects(model: GMDQN) -> None:
    env = gymnasium.make("CartPole-v1", render_mode="rgb_array", max_episode_steps=6)
    moments = play(model, env, seed=3, every=1).moments
    assert [moment.realised for moment in moments] == [None] * 7  # far from known at this discount
    gamma, model.gamma = model.gamma, 0.5
    env = gymnasium.make("CartPole-v1", render_mode="rgb_array", max_episode_steps=6)
    moments = play(model, env, seed=3, every=1).moments
    model.gamma = gamma
    seen, _ = (env := gymnasium.make("CartPole-v1")).reset(seed=1_000_003)
    for moment in moments[:-1]:
        seen, *_ = env.step(moment.action)
    rest = float(model.return_distribution(seen).mean.max())
    assert moments[2].realised == pytest.approx(sum(0.5**i for i in range(4)) + 0.5**4 * rest)
    assert [moment.realised is None for moment in moments] == [False] * 3 + [True] * 4


def test_an_episode_has_the_action_masks() -> None:
    def masked() -> gymnasium.Env:
        return MaskedActions(gymnasium.make("Taxi-v4", render_mode="rgb_array", max_episode_steps=4))

    settings = SMALL | {"learning_starts": 4, "device": "cpu"}
    model = GMDQN("MultiInputPolicy", masked(), **settings)
    moments = play(model, masked(), seed=1, every=1).moments
    env = masked()
    seen, _ = env.reset(seed=1_000_001)
    for moment in moments[:-1]:
        np.testing.assert_array_equal(moment.allowed, seen["action_mask"].astype(bool))
        assert moment.allowed[moment.action]
        seen, *_ = env.step(moment.action)
    assert not moments[0].allowed.all()


def test_an_episode_is_played_by_another_risk(model: GMDQN) -> None:
    def last(p):
        return torch.tensor([0.0, 1.0]).expand(p.batch_shape)

    episode = play(model, make_visible("CartPole-v1"), risk=last)
    assert {moment.action for moment in episode.moments[:-1]} == {1}


def test_long_episodes_are_thinned(model: GMDQN, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cramix.rl.evaluation._MAX_FRAMES", 2)
    whole = play(model, make_visible("CartPole-v1")).moments
    assert whole[-1].step > 6
    assert len(whole) <= 4
    gaps = np.diff([moment.step for moment in whole[:-1]])
    assert (gaps == gaps[0]).all()


class Blind(CartPoleEnv):
    metadata = {"render_modes": ["human"]}  # noqa: RUF012


def test_environments_that_cannot_be_seen_are_refused() -> None:
    gymnasium.register("Blind-v0", Blind)
    try:
        refuses(lambda: make_visible("Blind-v0"), "env", "Blind-v0")
    finally:
        del gymnasium.registry["Blind-v0"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("LunarLander-v3", ["nothing", "left engine", "main engine", "right engine"]),
        ("Acrobot-v1", ["torque -1", "nothing", "torque +1"]),
        ("Blackjack-v1", ["action 0", "action 1"]),
    ],
)
def test_actions_have_names(name: str, words: list[str]) -> None:
    env = gymnasium.make(name)
    assert action_names(env) == words
    env.close()


def test_the_lander_predicts_what_it_was_trained_to() -> None:
    """Numbers of the agent at the end of its training, and after its calibration."""
    agent = GMDQN.from_pretrained("LunarLander-v3", device="cpu")
    state = [0.0, 1.4, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    calibrated = agent.return_distribution(state)
    assert calibrated.mean.tolist() == pytest.approx([124.7512, 124.6712, 123.5433, 124.8773], abs=1e-3)
    assert calibrated.cvar(0.1).tolist() == pytest.approx([120.8415, 120.7620, 119.5766, 120.9671], abs=1e-3)
    agent.policy.recalibration.clear()
    returns = agent.return_distribution(state)
    assert returns.mean.tolist() == pytest.approx([125.8535, 125.7736, 124.6457, 125.9797], abs=1e-3)
    assert returns.cvar(0.1).tolist() == pytest.approx([115.6872, 115.4455, 113.4015, 115.3280], abs=1e-3)
    assert agent.returns == {
        "n_components": 3, "scales": "softplus", "min_scale": 0.0, "penalty_factor": 10.0, "preconditioned": False,
    }  # fmt: skip


def test_the_lander_that_comes_with_the_package_lands() -> None:
    """200 is what counts as solved there."""
    agent = GMDQN.from_pretrained("LunarLander-v3", device="cpu")
    assert np.median(evaluate(agent, "LunarLander-v3", 7)) > 200
    assert agent._n_updates > 0  # so that it learns on in the unit that it has


def test_the_lander_knows_how_sure_it_is() -> None:
    """Episodes that played no part in its training or calibration."""
    agent = GMDQN.from_pretrained("LunarLander-v3", device="cpu")
    found = evaluate_calibration(agent, "LunarLander-v3", 15, seed=60_000_000)
    assert 0.7 < found.coverage(0.8) < 0.9
    assert found.deviation < 1.4 * found.error  # 1.2 in 200 episodes
    assert found.crps.mean() < 0.1 * found.empirical_crps
    agent.policy.recalibration.clear()
    assert evaluate_calibration(agent, "LunarLander-v3", 15, seed=60_000_000).coverage(0.8) > 0.95


@pytest.mark.parametrize("risk", ["cvar:0.25", "quantile:0.5"])
def test_the_lander_lands_by_risk(risk: str) -> None:
    agent = GMDQN.from_pretrained("LunarLander-v3", device="cpu")
    assert evaluate(agent, "LunarLander-v3", 7, seed=61_000_000, risk=risk).min() > 200
