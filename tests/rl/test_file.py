"""Files of agents: the same agent comes back, goes on the same way, and damage is refused."""

import io
import json
import zipfile

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3.common.torch_layers import FlattenExtractor

from cramix.rl import ALGORITHMS, GMDQN, QRDQN
from cramix.rl.agents.gaussian import CramerReturns
from cramix.rl.file import describe
from cramix.rl.policy import MlpPolicy
from tests.refusals import refuses
from tests.rl.games import QUICK, Steps
from tests.rl.learners import same


def settings_of(model):
    """The settings of an agent; the defaults of its network are written out."""
    found = {name: getattr(model, name) for name in ("gamma", "train_freq", "batch_size", "risk", "learning_rate")}
    return found | {"returns": model.policy.returns_options, "network": model.policy.architecture}


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_same_agent_comes_back(algo, tmp_path):
    kind = ALGORITHMS[algo]
    model = kind("MlpPolicy", Steps(), seed=0, **QUICK).learn(50)
    model.save(tmp_path / "agent.zip")
    again = kind.load(tmp_path / "agent.zip")
    assert same(model, again)
    seen = np.random.default_rng(0).normal(size=(20, 2))
    np.testing.assert_array_equal(*(m.predict(seen, deterministic=True)[0] for m in (model, again)))
    assert torch.equal(model.return_distribution(seen).means, again.return_distribution(seen).means)
    assert settings_of(again) == settings_of(model)
    assert again.policy.unit == model.policy.unit != 1


@pytest.mark.parametrize(
    "changes",
    [{}, {"policy_kwargs": {"optimizer_class": "Lion"}, "fraction_learning_rate": 1e-5}, GMDQN.preset("paper")],
)
def test_learning_goes_on_as_if_nothing_had_happened(changes, tmp_path):
    def learn_on(model):
        model.exploration_rate = 0.3
        model.learn(30, reset_num_timesteps=False)
        return model

    model = GMDQN(
        "MlpPolicy", Steps(), seed=0, **{**changes, **QUICK, "policy_kwargs": changes.get("policy_kwargs")}
    ).learn(50)
    model.save(tmp_path / "agent.zip")
    model.save_replay_buffer(tmp_path / "memory.npz")
    again = GMDQN.load(tmp_path / "agent.zip", Steps())
    again.load_replay_buffer(tmp_path / "memory.npz")
    model.set_env(Steps())  # a new episode for both
    assert same(learn_on(model), learn_on(again))
    assert (again.num_timesteps, again._n_updates, again._episode_num) == (80, model._n_updates, model._episode_num)


def test_a_second_file_is_the_first(tmp_path):
    model = GMDQN("MlpPolicy", Steps(), seed=0, **QUICK).learn(50)
    model.save(tmp_path / "one.zip")
    GMDQN.load(tmp_path / "one.zip").save(tmp_path / "two.zip")
    one, two = (zipfile.ZipFile(tmp_path / name) for name in ("one.zip", "two.zip"))
    with one, two:
        for name in one.namelist():
            assert one.read(name) == two.read(name), name


def test_settings_of_all_kinds_come_back(tmp_path):
    model = GMDQN(
        "MlpPolicy",
        Steps(),
        train_freq=(1, "episode"),
        batch_size=np.int64(16),
        risk="cvar:0.3",
        learning_rate=np.float64(1e-3),
        returns={"n_components": 2},
        policy_kwargs={
            "net_arch": [8],
            "activation_fn": torch.nn.Tanh,
            "dueling": True,
            "layer_norm": True,
            "optimizer_class": torch.optim.RMSprop,
            "optimizer_kwargs": {"alpha": 0.9},
        },
        learning_starts=10,
    ).learn(30)
    model.save(tmp_path / "agent.zip")
    again = GMDQN.load(tmp_path / "agent.zip", Steps())
    assert settings_of(again) == settings_of(model)
    assert same(model, again)
    again.learn(20, reset_num_timesteps=False)
    assert again.num_timesteps == 50


def test_a_file_does_not_change_with_defaults(tmp_path, monkeypatch):
    model = GMDQN("MlpPolicy", Steps(), seed=0, learning_starts=20, policy_kwargs={"members": 3})
    model.save(tmp_path / "agent.zip")
    words = describe(tmp_path / "agent.zip")["arguments"]
    network = {"net_arch": [128, 128], "activation_fn": {"torch.nn": "ReLU"}, "layer_norm": False, "dueling": False}
    assert words["policy_kwargs"] == {**network, "members": 3, "features_dtype": "float32"}
    mixtures = {"n_components": 3, "scales": "softplus", "min_scale": 0.0, "penalty_factor": 10.0}
    assert words["returns"] == {**mixtures, "preconditioned": False}
    monkeypatch.setattr(MlpPolicy, "default_arch", (7,))
    monkeypatch.setitem(CramerReturns.__init__.__kwdefaults__, "n_components", 5)
    again = GMDQN.load(tmp_path / "agent.zip")
    assert same(model, again)
    assert settings_of(again) == settings_of(model)


def test_a_name_without_an_ending_gets_one(tmp_path):
    model = GMDQN("MlpPolicy", Steps(), seed=0, **QUICK)
    model.save(tmp_path / "agent")
    assert [path.name for path in tmp_path.iterdir()] == ["agent.zip"]
    assert same(model, GMDQN.load(tmp_path / "agent"))
    assert same(model, GMDQN.load(str(tmp_path / "agent.zip")))


def test_changes_at_loading(tmp_path):
    GMDQN("MlpPolicy", Steps(), seed=0, **QUICK).save(tmp_path / "agent.zip")
    again = GMDQN.load(tmp_path / "agent.zip", seed=5, verbose=0, gamma=0.5, risk="cvar:0.1")
    assert (again.seed, again.gamma, again.risk) == (5, 0.5, "cvar:0.1")
    assert again.replay_buffer.gamma == 0.5
    with pytest.raises(TypeError, match="Did you mean gamma"):
        GMDQN.load(tmp_path / "agent.zip", gama=0.5)


class Doubled(FlattenExtractor):
    """An extractor of one's own."""

    def __init__(self, space, first=None, others=()):
        super().__init__(space)
        self.maps = [first or torch.nn.Identity(), *others]

    def forward(self, x):
        x = 2 * super().forward(x)
        for each in self.maps:
            x = each(x)
        return x


def extractor(**arguments):
    return {"policy_kwargs": {"features_extractor_class": Doubled, "features_extractor_kwargs": arguments}}


class MyPolicy(MlpPolicy):
    """A policy of one's own."""


def risk(p):
    """A risk of one's own."""
    return p.mean


@pytest.mark.parametrize(
    ("own", "named"),
    [
        ({"risk": risk}, "risk"),
        ({"policy_kwargs": {"features_extractor_class": Doubled}}, "policy_kwargs.features_extractor_class"),
        (extractor(first=torch.neg), "policy_kwargs.features_extractor_kwargs.first"),
        (extractor(others=[torch.neg, torch.abs]), "policy_kwargs.features_extractor_kwargs.others"),
    ],
)
def test_code_of_ones_own_is_left_out_and_asked_for(own, named, tmp_path):
    own = {**own, "policy_kwargs": {**QUICK["policy_kwargs"], **own.get("policy_kwargs", {})}}
    model = GMDQN("MlpPolicy", Steps(), seed=0, **{**QUICK, **own})
    model.save(tmp_path / "agent.zip")
    with pytest.raises(ValueError, match=f"made with .*{named}.*Pass {named.partition('.')[0]} to load"):
        GMDQN.load(tmp_path / "agent.zip")
    again = GMDQN.load(tmp_path / "agent.zip", **own)
    assert same(model, again)
    assert torch.equal(*(m.return_distribution([1.0, 2.0]).means for m in (model, again)))


def test_a_policy_of_ones_own_is_asked_for(tmp_path):
    model = GMDQN(MyPolicy, Steps(), seed=0, **QUICK)
    model.save(tmp_path / "agent.zip")
    refuses(lambda: GMDQN.load(tmp_path / "agent.zip"), "policy", "MyPolicy", "one of")
    again = GMDQN.load(tmp_path / "agent.zip", policy=MyPolicy)
    assert same(model, again)
    assert type(again.policy) is MyPolicy


def test_another_algorithm_is_named(tmp_path):
    QRDQN("MlpPolicy", Steps(), **QUICK).save(tmp_path / "agent.zip")
    with pytest.raises(ValueError, match=r"must hold a GMDQN; got a QRDQN. Use QRDQN.load"):
        GMDQN.load(tmp_path / "agent.zip")


def test_another_environment_is_refused(tmp_path):
    GMDQN("MlpPolicy", Steps(), **QUICK).save(tmp_path / "agent.zip")
    for env in (gymnasium.make("CartPole-v1"), Steps(start=1)):
        with pytest.raises(ValueError, match="env must have the spaces of the file"):
            GMDQN.load(tmp_path / "agent.zip", env)


def test_no_file_is_said_as_such(tmp_path):
    with pytest.raises(FileNotFoundError, match="none"):
        GMDQN.load(tmp_path / "none.zip")


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    path = tmp_path_factory.mktemp("agent") / "agent.zip"
    GMDQN("MlpPolicy", Steps(), seed=0, **QUICK).learn(25).save(path)
    return path.read_bytes()


def test_damage_is_refused(content, tmp_path):
    path = tmp_path / "agent.zip"
    random = np.random.default_rng(0)
    path.write_bytes(content)
    whole, refused = GMDQN.load(path), 0
    damages = [content[:n] for n in (0, 1, 1000, len(content) // 2, len(content) - 1)]
    # Where a zip says what is in it, as often as in all the rest.
    directory = content.index(b"PK\x01\x02")
    places = [*random.integers(len(content), size=60), *random.integers(directory, len(content), size=60)]
    for place in places:
        damaged = bytearray(content)
        damaged[place] ^= 1 << random.integers(8)
        damages.append(bytes(damaged))
    for damaged in damages:
        path.write_bytes(damaged)
        try:
            again = GMDQN.load(path)
        except ValueError as error:
            assert "must" in str(error)  # noqa: PT017
            refused += 1
        else:  # a bit that nobody reads
            assert same(whole, again)
    assert refused > 80


def changed(content, change):
    """The file with other words in it."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "model.json":
                words = json.loads(data)
                data = json.dumps(change(words) or words)
            new.writestr(name, data)
    return out.getvalue()


@pytest.mark.parametrize(
    "change",
    [
        lambda words: words.update(format=99),
        lambda words: words.pop("arguments") and None,
        lambda words: words.pop("algorithm") and None,
        lambda words: words.pop("generators") and None,
        lambda words: words["arguments"].update(gamma=7),
        lambda words: words["arguments"].update(surprise=7),
        lambda words: words["arguments"]["policy_kwargs"].update(optimizer_class={"torch.optim": "Nothing"}),
        lambda words: words["arguments"]["policy_kwargs"].update(activation_fn={"torch.nn": "utils"}),
        lambda words: words["arguments"]["policy_kwargs"].update(net_arch=[9]),
        lambda words: words["observation_space"].update(kind="Graph"),
        lambda words: words["generators"].update(replay={"bit_generator": "Mersenne"}),
        lambda words: [1, 2],
    ],
)
def test_words_that_make_no_sense_are_refused(change, content, tmp_path):
    path = tmp_path / "agent.zip"
    path.write_bytes(changed(content, lambda words: None))
    GMDQN.load(path)
    path.write_bytes(changed(content, change))
    with pytest.raises(ValueError, match="must"):
        GMDQN.load(path)


def places(words, at=()):
    """All names in words, one inside of another."""
    for key, x in words.items():
        yield (*at, key)
        if isinstance(x, dict):
            yield from places(x, (*at, key))


def test_wrong_words_anywhere_are_refused_or_harmless(content, tmp_path):
    """Every name in a file, gone or with another value: a ValueError, or an agent."""
    path, random = tmp_path / "agent.zip", np.random.default_rng(0)
    path.write_bytes(content)
    gone, refused = object(), 0
    for at in places(describe(path)):
        for value in [gone, *random.permutation(np.array([None, [], {}, "x", -1, 1.5], object))[:2]]:

            def change(words, at=at, value=value):
                for key in at[:-1]:
                    words = words[key]
                if value is gone:
                    del words[at[-1]]
                else:
                    words[at[-1]] = value

            path.write_bytes(changed(content, change))
            try:
                GMDQN.load(path)
            except ValueError as error:
                assert "must" in str(error), (at, value)  # noqa: PT017
                refused += 1
    assert refused > 80


def test_files_hold_no_code(content):
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.namelist() == ["model.json", "networks.safetensors", "optimizer.safetensors"]
        for name in archive.namelist():
            data = archive.read(name)
            if name.endswith("safetensors"):  # the length of the words, the words, numbers
                data = data[8 : 8 + int.from_bytes(data[:8], "little")]
            assert json.loads(data)


def test_a_file_that_cannot_be_written_leaves_the_old_one(content, tmp_path, monkeypatch):
    path = tmp_path / "agent.zip"
    path.write_bytes(content)
    model = GMDQN.load(path)
    monkeypatch.setattr("cramix.rl.file.optimizer_state", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.save(path)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("algo", ["gmdqn", "fqf"])
def test_moments_belong_to_their_parameters(algo, tmp_path):
    """A rate for fractions moves their layers into another group of the optimiser."""
    kind = ALGORITHMS[algo]
    model = kind("MlpPolicy", Steps(), seed=0, **QUICK).learn(50)
    model.save(tmp_path / "agent.zip")
    again = kind.load(tmp_path / "agent.zip", Steps(), fraction_learning_rate=1e-5)
    names = dict(again.q_net.named_parameters())
    for name, p in model.q_net.named_parameters():
        for moment in ("exp_avg", "exp_avg_sq"):
            one, other = model.policy.optimizer.state[p][moment], again.policy.optimizer.state[names[name]][moment]
            assert torch.equal(one, other)
    again.learn(40)


def test_another_optimiser_starts_without_a_state(tmp_path):
    model = GMDQN("MlpPolicy", Steps(), seed=0, **QUICK).learn(50)
    model.save(tmp_path / "agent.zip")
    for changes in ({"optimizer_class": "RMSprop"}, {"optimizer_kwargs": {"amsgrad": True}}):
        with pytest.warns(UserWarning, match="another optimiser, Adam"):
            again = GMDQN.load(tmp_path / "agent.zip", Steps(), policy_kwargs=changes)
        assert not again.policy.optimizer.state
        again.learn(40)
    model.policy.optimizer = torch.optim.SGD(model.q_net.parameters(), lr=1e-3, momentum=0.9)
    model.learn(30)
    model.save(tmp_path / "other.zip")
    with pytest.warns(UserWarning, match="another optimiser, SGD"):
        GMDQN.load(tmp_path / "other.zip", Steps()).learn(40)


def test_moments_of_other_shapes_are_refused(tmp_path):
    model = GMDQN("MlpPolicy", Steps(), seed=0, **QUICK).learn(50)
    state = model.policy.optimizer.state[next(model.q_net.parameters())]
    state["exp_avg"] = torch.zeros(3)
    model.save(tmp_path / "agent.zip")
    refuses(lambda: GMDQN.load(tmp_path / "agent.zip"), "agent.zip", "(8, 2); got (3,)")


def test_double_precision_comes_back(tmp_path):
    model = GMDQN("MlpPolicy", Steps(), seed=0, **QUICK)
    model.policy.double()
    model.learn(50).save(tmp_path / "agent.zip")
    again = GMDQN.load(tmp_path / "agent.zip", Steps())
    assert same(model, again)
    assert next(again.q_net.parameters()).dtype == torch.float64
    again.learn(30)


def test_another_seed_is_one(tmp_path):
    GMDQN("MlpPolicy", Steps(), seed=0, **QUICK).learn(30).save(tmp_path / "agent.zip")
    drawn = [GMDQN.load(tmp_path / "agent.zip", seed=seed).exploration.generator.random() for seed in (1, 2)]
    assert drawn[0] != drawn[1]


class Named(FlattenExtractor):
    """An extractor with dictionaries as arguments."""

    def __init__(self, space, table=None, schedule=None):
        super().__init__(space)


def test_dictionaries_in_settings(tmp_path):
    def made(**kwargs):
        return {**QUICK["policy_kwargs"], "features_extractor_class": Named, "features_extractor_kwargs": kwargs}

    path = tmp_path / "agent.zip"
    GMDQN("MlpPolicy", Steps(), **{**QUICK, "policy_kwargs": made(schedule={"schedule": "cosine"})}).save(path)
    again = GMDQN.load(path, policy_kwargs={"features_extractor_class": Named})
    assert again.policy_kwargs["features_extractor_kwargs"] == {"schedule": {"schedule": "cosine"}}
    GMDQN("MlpPolicy", Steps(), **{**QUICK, "policy_kwargs": made(table={1: 2})}).save(path)
    assert "policy_kwargs.features_extractor_kwargs.table" in describe(path)["left_out"]
