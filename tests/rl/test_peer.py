"""Our QRDQN beside that of sb3-contrib: the same weights and batch give the same loss and gradient."""

import numpy as np
import pytest
import sb3_contrib
import torch
from sb3_contrib.common.utils import quantile_huber_loss

from cramix.rl import QRDQN
from cramix.rl.replay import to_transitions
from tests.rl.games import Steps

QUANTILES, ACTIONS, GAMMA = 7, 3, 0.9


@pytest.fixture
def agents():
    ours = QRDQN(
        "MlpPolicy",
        Steps(),
        seed=0,
        gamma=GAMMA,
        n_steps=1,
        return_scale=1.0,
        max_grad_norm=None,
        returns={"quantiles": QUANTILES},
        policy_kwargs={"net_arch": [16, 8], "members": 1, "optimizer_class": torch.optim.SGD},
        learning_rate=1.0,
        target_update_interval=1000,
    )
    theirs = sb3_contrib.QRDQN(
        "MlpPolicy", Steps(), gamma=GAMMA, policy_kwargs={"net_arch": [16, 8], "n_quantiles": QUANTILES}, device="cpu"
    )
    # Theirs has the quantiles first, ours the actions.
    order = torch.arange(QUANTILES * ACTIONS).view(ACTIONS, QUANTILES).T.flatten()
    for net, other in (
        (ours.policy.q_net, theirs.quantile_net),
        (ours.policy.q_net_target, theirs.quantile_net_target),
    ):
        values = list(net.state_dict().values())
        for target, source in zip(other.parameters(), values, strict=True):
            target.data.copy_(source if source.shape[0] != QUANTILES * ACTIONS else source[order])
    return ours, theirs


def test_the_same_loss_and_gradient(agents):
    ours, theirs = agents
    random = np.random.default_rng(0)
    for _ in range(64):
        seen, after = random.normal(size=(2, 1, 2))
        action, reward = random.integers(ACTIONS, size=1), random.normal(size=1).astype(np.float32)
        done = random.random(1) < 0.2
        for agent in agents:
            agent.replay_buffer.add(seen, after, action, reward, done, [{}])
    rows = np.arange(64)
    theirs_batch = theirs.replay_buffer._get_samples(rows)
    before = {name: p.clone() for name, p in ours.policy.q_net.named_parameters()}
    metrics = ours.learner.update(to_transitions(ours.replay_buffer._get_samples(rows), GAMMA))

    with torch.no_grad():
        ahead = theirs.quantile_net_target(theirs_batch.next_observations)
        best = ahead.mean(1).argmax(1)
        goal = theirs_batch.rewards + (1 - theirs_batch.dones) * GAMMA * ahead[rows, :, best]
    current = theirs.quantile_net(theirs_batch.observations)[rows, :, theirs_batch.actions[:, 0]]
    loss = quantile_huber_loss(current, goal, sum_over_quantiles=True)
    loss.backward()

    assert metrics[1].item() == pytest.approx(loss.item(), rel=1e-5)
    order = torch.arange(QUANTILES * ACTIONS).view(ACTIONS, QUANTILES).T.flatten()
    for (name, p), other in zip(ours.policy.q_net.named_parameters(), theirs.quantile_net.parameters(), strict=True):
        gradient = before[name] - p  # a step of length one downhill
        gradient = gradient[order] if len(p) == QUANTILES * ACTIONS else gradient
        torch.testing.assert_close(gradient, other.grad, rtol=1e-3, atol=1e-6)


def test_the_same_actions(agents):
    seen = np.random.default_rng(1).normal(size=(50, 2))
    np.testing.assert_array_equal(*(agent.predict(seen, deterministic=True)[0] for agent in agents))
