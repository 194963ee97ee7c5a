"""Populations on MinAtar: the networks, losses and replay of many runs are those of each run alone."""

from __future__ import annotations

import math
from inspect import signature

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d

from cramix.rl import ALGORITHMS as AGENTS
from cramix.rl.agents.implicit import ImplicitReturns
from cramix.rl.returns import Parts
from experiments.minatar import checkpoint, results
from experiments.minatar.__main__ import _parser, _plan, main
from experiments.minatar.games.game import ACTIONS
from experiments.minatar.learner import Learner
from experiments.minatar.memory import Memory
from experiments.minatar.networks import Layout, features, patches
from experiments.minatar.population import Population
from experiments.minatar.report import Scores, write_page
from experiments.minatar.results import Point, Result, chosen_rates
from experiments.minatar.returns import RETURNS
from experiments.minatar.settings import ALGORITHMS, DEFAULT, Plan, Settings, Variant
from experiments.minatar.training import Job, train

CPU = torch.device("cpu")
SMALL = Settings(
    steps=800, buffer_size=400, learning_starts=200, exploration_steps=400, hidden=16, filters=4, target_interval=20
)


def plan(algorithms=ALGORITHMS, games=("breakout", "freeway"), seeds=(0, 1), **changes):
    settings = Settings(**{**vars(SMALL), **changes})
    return Plan([Variant(name, 1e-3) for name in algorithms], games, seeds, settings)


def network_of(layout, rows, run, member, name):
    """Return the trunk and the last layer of `cramix.rl` with the parameters of one member of one run."""
    s, part = layout.plan.settings, layout.plan.segments()[name]
    views = layout.views(rows)
    trunk = nn.Sequential(
        nn.Conv2d(10, s.filters, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64 * s.filters, s.hidden), nn.ReLU()
    )
    options = {"low": 0.0, "high": 20.0} if name == "c51" else {"min_scale": 0.05} if name == "nll" else {}
    last = AGENTS[name].returns_class(s.hidden, ACTIONS, **options)
    with torch.no_grad():
        weight, bias = (x[run, member] for x in views["trunk"]["convolution"])
        trunk[0].weight.copy_(weight[:90].T.reshape(trunk[0].weight.shape))
        trunk[0].bias.copy_(bias.view(-1))
        weight, bias = (x[run, member] for x in views["trunk"]["hidden"])  # places, then filters
        trunk[3].weight.copy_(weight.T.view(s.hidden, 64, s.filters).transpose(1, 2).reshape(s.hidden, -1))
        trunk[3].bias.copy_(bias.view(-1))
        for layer, (weight, bias) in views[name].items():
            linear = getattr(last, layer)
            linear = linear if isinstance(linear, nn.Linear) else linear.actions
            linear.weight.copy_(weight[run - part.start, member].T)
            linear.bias.copy_(bias[run - part.start, member].view(-1))
    return trunk, last


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("members", [1, 2])
def test_predictions_and_losses_are_those_of_the_agents(name, members):
    generator = torch.Generator().manual_seed(0)
    layout = Layout(plan(("gmdqn", name) if name != "gmdqn" else (name,), members=members))
    rows = layout.initial(generator)
    part, returns = layout.plan.segments()[name], RETURNS[name](16, ACTIONS)
    screens = torch.rand(len(rows), 5, 10, 10, 10, generator=generator) < 0.2
    uniform = torch.rand(4, members, 5, returns.draws, generator=generator) if returns.draws else None
    views = layout.views(rows)
    found = features(views["trunk"], patches(screens))
    distribution = returns.distribution(views[name], found[part], uniform)
    actions = torch.randint(ACTIONS, (4, 5), generator=generator)
    reward, discount = torch.rand(2, 4, 5, generator=generator)
    reward[:, 0], discount[:, 0] = 1.0, 0.0  # the end of an episode
    target = distribution.select(actions.flip(1)).joined().affine(reward, discount)
    losses = returns.loss(distribution.select(actions), target)
    for run in range(4):
        nets = [network_of(layout, rows, part.start + run, member, name) for member in range(members)]
        expected = [trunk(screens[part.start + run].float()) for trunk, _ in nets]
        for member, (own, (_, last)) in enumerate(zip(expected, nets, strict=True)):
            torch.testing.assert_close(found[part.start + run, member], own)
            drawn = isinstance(last, ImplicitReturns)
            parts = last.at(own, uniform[run, member]) if drawn else last(own)
            torch.testing.assert_close(distribution.mean()[run, member], parts.mean(), rtol=1e-4, atol=1e-5)
            goal = Parts(*(x.expand_as(target.means)[run, 0] for x in target[:3]))
            loss = last.loss(parts.select(actions[run]), goal)
            torch.testing.assert_close(losses[run, member], loss, rtol=1e-4, atol=1e-5)
        joined = torch.stack([distribution.mean()[run, m] for m in range(members)]).mean(0)
        chosen = joined.gather(1, actions[run].flip(0).unsqueeze(1)).squeeze(1)
        torch.testing.assert_close(target.mean()[run, 0], reward[run] + discount[run] * chosen)


def test_initial_parameters_have_the_distribution_of_torch():
    layout = Layout(plan(("qrdqn",), games=("breakout", "seaquest"), seeds=range(40)))
    views = layout.views(layout.initial(torch.Generator().manual_seed(0)))
    for layer, inputs in (("convolution", (36, 90)), ("hidden", (256, 256))):
        weight, bias = views["trunk"][layer]
        for game, bound in enumerate(1 / math.sqrt(n) for n in inputs):
            for x in (weight.unflatten(0, (2, 40))[game], bias.unflatten(0, (2, 40))[game]):
                assert 0.9 * bound < x.abs().max() <= bound
                assert x.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)


def filled(n_steps, steps=60):
    memory = Memory(2, 3, 90, 0.9, n_steps, CPU)
    generator = torch.Generator().manual_seed(0)
    history = []
    for t in range(steps):
        screens = torch.zeros(2, 3, 10, 10, 10, dtype=torch.bool)
        for run in range(2):
            for env in range(3):  # the number of the step, in binary
                bits = [int(x) for x in f"{(t * 2 + run) * 3 + env:010b}"]
                screens[run, env, 0, 0] = torch.tensor(bits, dtype=torch.bool)
        memory.add_screens(screens)
        if t + 1 < steps:
            actions = torch.randint(6, (2, 3), generator=generator)
            rewards, terminal = torch.rand(2, 3, generator=generator), torch.rand(2, 3, generator=generator) < 0.2
            memory.add_results(actions, rewards, terminal)
            history.append((actions, rewards, terminal))
    return memory, history


def number(screens):
    return int((screens[0, 0].long() * 2 ** torch.arange(9, -1, -1)).sum())


@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize("steps", [8, 60])
def test_memory_returns_what_happened(n_steps, steps):
    memory, history = filled(n_steps, steps)
    batch = memory.draw(torch.rand(2, 4000, generator=torch.Generator().manual_seed(1)))
    seen = set()
    for run in range(2):
        for i in range(4000):
            t, rest = divmod(number(batch.screens[run, i]), 6)
            assert rest // 3 == run
            env = rest % 3
            seen.add((run, t, env))
            total, discount = 0.0, 1.0
            for ahead in range(n_steps):
                _, rewards, terminal = history[t + ahead]
                total += 0.9**ahead * rewards[run, env].item()
                discount = 0.9 ** (ahead + 1)
                if terminal[run, env]:
                    discount = 0.0
                    break
            assert batch.actions[run, i] == history[t][0][run, env]
            assert batch.rewards[run, i].item() == pytest.approx(total, rel=1e-5)
            assert batch.discounts[run, i].item() == pytest.approx(discount)
            if discount:
                assert number(batch.next_screens[run, i]) == ((t + n_steps) * 2 + run) * 3 + env
    oldest = max(0, steps - 1 - memory.slots + 1)
    expected = {(r, t, e) for r in range(2) for t in range(oldest, steps - n_steps) for e in range(3)}
    assert seen == expected  # every step that is complete, and no other


def trained(p):
    """Return a population after some updates, and random numbers for the next one."""
    population = Population(p, CPU)
    for _ in range(55):
        population.step()
    population.memory.add_screens(population.arcade.screens)
    draws = sum(population.learner.draws.values())
    return population, torch.rand(len(p.runs), p.settings.batch_size), torch.rand(draws)


def losses_of(learner, rows, batch, uniform):
    """Return the loss of every run as a plain function of its parameters, with `torch.nn.functional.conv2d`."""
    layout, s = learner.layout, learner.plan.settings
    online, target = layout.views(rows), layout.views(learner.target)

    def features_of(trunk, screens):
        (weight, bias), (weight_2, bias_2) = trunk["convolution"], trunk["hidden"]
        kernels = weight[:, :, :90].mT.unflatten(3, (10, 3, 3))
        maps = [
            [conv2d(screens[i].float(), kernels[i, m], bias[i, m, 0]).relu() for m in range(s.members)]
            for i in range(len(rows))
        ]
        flat = torch.stack([torch.stack(x) for x in maps]).permute(0, 1, 2, 4, 5, 3).flatten(3)  # places, then filters
        return (flat @ weight_2 + bias_2).relu()

    now, following = features_of(online["trunk"], batch.screens), features_of(online["trunk"], batch.next_screens)
    after = features_of(target["trunk"], batch.next_screens)
    losses = []
    for (name, part), draws in zip(learner.parts.items(), uniform.split(list(learner.draws.values())), strict=True):
        returns = layout.returns[name]
        mine, theirs = draws.view(2, *now[part].shape[:-1], -1) if len(draws) else (None, None)
        best = returns.distribution(online[name], following[part]).mean().mean(1).argmax(-1)
        goal = returns.distribution(target[name], after[part], theirs).select(best).joined()
        goal = goal.affine(batch.rewards[part], batch.discounts[part])
        prediction = returns.distribution(online[name], now[part], mine).select(batch.actions[part])
        losses.append(returns.loss(prediction, goal).mean(-1).sum(-1))
    return torch.cat(losses)


@pytest.mark.parametrize("members", [1, 2])
def test_gradients_are_those_of_the_mean_loss_of_each_run(members):
    population, selection, uniform = trained(plan(members=members, n_steps=2 * members - 1))
    learner = population.learner
    learner.gradient.fill_(0.0)
    learner.differentiate(population.memory, selection, uniform)
    rows = learner.online.clone().requires_grad_()
    losses = losses_of(learner, rows, population.memory.draw(selection), uniform)
    expected = torch.autograd.grad(losses.sum(), rows, retain_graph=True)[0]
    for name, part in learner.parts.items():
        error = (learner.gradient[part] - expected[part]).norm(dim=1) / expected[part].norm(dim=1)
        assert error.max() < 1e-4, name
    alone = torch.autograd.grad(losses[5], rows)[0]
    assert alone[:5].abs().max() == alone[6:].abs().max() == 0  # runs do not mix


def test_an_update_is_a_step_of_adam():
    population, selection, uniform = trained(plan(("gmdqn", "qrdqn"), max_grad_norm=0.05))
    fresh = Learner(population.plan, CPU, torch.Generator().manual_seed(0))
    fresh.online.copy_(population.learner.online)
    fresh.target.copy_(population.learner.target)
    reference = nn.Parameter(fresh.online.clone())
    adam = torch.optim.Adam([reference], 1e-3, eps=SMALL.adam_eps)
    for _ in range(3):
        fresh.differentiate(population.memory, selection, uniform)
        fresh.descend()
        norm = fresh.gradient.norm(dim=1, keepdim=True)
        assert (norm > 0.05).any()
        reference.grad = fresh.gradient * (0.05 / norm).clamp(max=1)
        adam.step()
        torch.testing.assert_close(fresh.online, reference.detach(), rtol=1e-5, atol=1e-7)


def test_a_resumed_population_is_bit_identical(tmp_path):
    p = plan(("gmdqn", "iqn"), games=("breakout", "seaquest"), seeds=(0,))
    one, two = Population(p, CPU, 3), Population(p, CPU, 3)
    for _ in range(60):
        one.step()
        two.step()
    path = tmp_path / "state.pt"
    checkpoint.write(path, two, checkpoint.Progress(1.5, (("gmdqn", 1),)))
    three = Population(p, CPU, 4)
    assert checkpoint.restore(path, three) == (1.5, (("gmdqn", 1),))
    for _ in range(20):
        one.step()
        three.step()
    for name, x in one.tensors().items():
        assert torch.equal(x, three.tensors()[name]), name
    with pytest.raises(ValueError, match="another"):
        checkpoint.restore(path, Population(plan(("gmdqn",)), CPU))


@pytest.mark.slow
def test_training_stops_resumes_and_writes_every_run(tmp_path):
    p = plan(("gmdqn", "ddqn"), games=("breakout",))
    jobs = [Job("x", p, {"gmdqn": "ours"}), Job("beside", plan(("gmdqn",), games=("freeway",), hidden=8, steps=600))]
    options = {"device": CPU, "state": tmp_path / "state", "max_steps": 50}
    assert train(jobs, tmp_path, minutes=0.0, **options) is None
    assert not (tmp_path / "x.csv").exists()
    cut = train([Job("cut", p)], tmp_path, minutes=0.0, finish=True, device=CPU, max_steps=50)
    assert {row.steps for row in cut} == {400}
    both = train(jobs, tmp_path, **options)
    assert [row.steps for row in both] == 4 * [800] + 2 * [600]
    assert {row.together for row in both} == {6}
    alone = train(jobs[1:], tmp_path / "alone", device=CPU, max_steps=50)
    assert [row.score for row in both[4:]] == [row.score for row in alone]
    found = both[:4]
    assert not (tmp_path / "state" / "x.pt").exists()
    rows = results.read(tmp_path / "x.csv", Result)
    assert [(row.label, row.game, row.seed) for row in rows] == [
        (label, "breakout", seed) for label in ("ours", "ddqn") for seed in (0, 1)
    ]
    assert [row.score for row in rows] == pytest.approx([row.score for row in found], rel=1e-4)
    points = results.read(tmp_path / "x_curves.csv", Point)
    assert {point.step for point in points} == set(range(40, 801, 40))
    assert sum(point.episodes for point in points) > 0


def test_parameters_are_those_of_the_networks():
    layout = Layout(Plan([Variant(name, 1e-3) for name in ALGORITHMS]))
    assert layout.parameters("qrdqn", "breakout")[1] == 129 * 6 * 51
    assert layout.parameters("gmdqn", "breakout") == (37 * 16 + 1025 * 128 + 129 * 54, 129 * 54)


def row(algorithm, rate, score, game="breakout", seed=0):
    return Result(algorithm, algorithm, rate, game, seed, 1, 1, score, 0.0, 1, 0, 0.0, 1, 1, 0.0, 1)


def test_the_best_learning_rate_of_each_algorithm_is_chosen():
    rows = [row("a", 0.1, 1.0), row("a", 0.1, 5.0), row("a", 0.2, 2.0), row("b", 0.1, math.nan), row("b", 0.2, -1.0)]
    assert chosen_rates(rows) == {"a": 0.1, "b": 0.2}


def test_a_command_tunes_and_trains(tmp_path, capsys):
    common = ["--steps", "480", "--buffer", "400", "--hidden", "8", "--device", "cpu", "--max-steps", "20"]
    common += ["--out", str(tmp_path), "--algorithm", "ddqn", "--seeds", "1"]
    main(["tune", *common, "--rate", "1e-3"])
    main(["tune", *common, "--rate", "1e-3", "1e-4"])
    main(["tune", *common, "--rate", "3e-3"])
    for name, kind in (("tune", Result), ("tune_curves", Point)):
        rates = [row.learning_rate for row in results.read(tmp_path / f"{name}.csv", kind)]
        assert all(3 * rates.count(rate) == len(rates) for rate in (1e-3, 1e-4, 3e-3))  # every run once
    main(["train", *common, "--rates", str(tmp_path / "tune.csv"), "--game", "asterix"])
    assert "ddqn-8" in capsys.readouterr().out
    (row,) = results.read(tmp_path / "train.csv", Result)
    assert (row.algorithm, row.game, row.seed) == ("ddqn", "asterix", 0)
    assert {row.seed for row in results.read(tmp_path / "tune.csv", Result)} == {100}


def test_the_target_network_is_copied_after_a_thousand_steps_whatever_the_number_of_environments():
    def settings(*options):
        parsed = _parser().parse_args(["train", "--rate", "1e-3", *options])
        return _plan(parsed)[0].settings

    assert settings() == Settings()
    eight = settings("--envs", "8", "--batch", "64")
    assert (eight.target_interval, eight.batch_size) == (125, 64)
    assert settings("--default").target_interval == 1


def test_the_default_is_that_of_the_package():
    agent = signature(AGENTS["gmdqn"]).parameters
    for name, ours in (("n_steps", "n_steps"), ("target_update_interval", "target_interval")):
        assert DEFAULT[ours] == agent[name].default
    assert DEFAULT["final_learning_rate"] == agent["final_learning_rate"].default
    model = AGENTS["gmdqn"]("MlpPolicy", "CartPole-v1", device="cpu")
    assert (DEFAULT["tau"], DEFAULT["members"]) == (model.tau, model.q_net.members)


@pytest.mark.slow
def test_compiled_games_and_updates_are_the_uncompiled_ones(capsys):
    main(["check", "--device", "cpu", "--compile"])
    assert "games are equal" in capsys.readouterr().out


def test_unknown_games_and_disordered_variants_are_refused():
    with pytest.raises(ValueError, match="game"):
        Plan([Variant("gmdqn", 1e-3)], games=("pong",))
    with pytest.raises(ValueError, match="order"):
        Plan([Variant("ddqn", 1e-3), Variant("gmdqn", 1e-3)])


def test_scores_are_relative_to_random_actions_and_the_best():
    rows = [row(label, 1e-3, score, "asterix", seed) for label, score in (("a", 3.0), ("b", 5.0)) for seed in (0, 1)]
    scores = Scores(rows, [row("random", 0.0, 1.0, "asterix")], ["asterix"])
    assert scores.normalised["a"].tolist() == [[0.5], [0.5]]
    assert [(label, iqm.value) for label, iqm in scores.ranking()] == [("b", 1.0), ("a", 0.5)]


def test_the_page_states_what_the_intervals_support(tmp_path):
    random = np.random.default_rng(0)
    means = {"gmdqn": 10.0, "qrdqn": 10.0, "ddqn": 2.0}
    games = ("asterix", "breakout", "seaquest")
    rows = [
        row(label, 1e-3, mean + random.normal(), game, seed)
        for label, mean in means.items()
        for game in games
        for seed in range(10)
    ]
    points = [Point(x.label, 1e-3, x.game, x.seed, step, x.score, 3) for x in rows for step in (100, 200)]
    tuning = [row("gmdqn", 1e-3, 1.0), row("gmdqn", 1e-4, 2.0), row("ddqn", 1e-3, 3.0)]
    results.write(tmp_path / "train.csv", rows, Result)
    results.write(tmp_path / "train_curves.csv", points, Point)
    results.write(tmp_path / "tune.csv", tuning, Result)
    results.write(tmp_path / "random.csv", [row("random", 0.0, 0.5, game) for game in games], Result)
    write_page(tmp_path, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "| `gmdqn` | **2.0** | 1.0 |" in page
    assert "| `ddqn` |  | **3.0** |" in page
    assert "The highest rate is the best for `ddqn`;" in page
    assert "In it `gmdqn` has a rate of 0.001, where 0.0001 would have been chosen" in page
    assert "stopped at 1 of the 1,000,000 steps" in page
    assert "learning rate of `gmdqn-default` had" not in page
    assert "is better than `ddqn`; level with `qrdqn`." in page
    assert "Over asterix, seaquest; breakout" in page
    assert (tmp_path / "page.png").stat().st_size > 1000
    assert (tmp_path / "page_curves.png").stat().st_size > 1000


def test_the_page_says_that_there_are_no_results(tmp_path):
    write_page(tmp_path, tmp_path / "page.md")
    assert "has not been run yet" in (tmp_path / "page.md").read_text()
