"""Bad input: a ValueError that names the argument, the rule and the value, with nothing changed."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Categorical, Laplace, MixtureSameFamily, Normal

import cramix
from cramix import CramerLoss, NormalMixture, cramer_distance, cramer_loss, crps, density_l2_loss, lp_distance
from tests.refusals import meta, refuses

NAN, INF = math.nan, math.inf


def tensor(x, **options):
    return torch.tensor(x, dtype=torch.float64, **options)


VALID = {"weights": [0.25, 0.75], "means": [0.0, 1.0], "scales": [1.0, 2.0]}
P = NormalMixture(*(tensor(t) for t in VALID.values()))
PAIR = P.expand((2,))
ATOMS = NormalMixture.from_samples(tensor([0.0, 1.0, 3.0]))
MIXED = NormalMixture.mix([P, ATOMS], tensor([0.5, 0.5]))


# Numbers of another kind


def test_dtypes_are_promoted_as_torch_does():
    single = NormalMixture(*(torch.tensor(t) for t in VALID.values()))
    assert NormalMixture(tensor([0.25, 0.75]), torch.tensor([0, 1]), torch.ones(2)).dtype == torch.float64
    assert NormalMixture([0.25, 0.75], [0, 1], [1, 2]) == single
    assert single.log_prob(tensor([0.5])).dtype == torch.float64
    assert single.log_prob(tensor(0.5)).dtype == torch.float32  # as numbers without axes do in torch
    assert single.icdf(tensor([0.5])).dtype == torch.float64
    assert single.log_prob(torch.tensor([0, 1])).dtype == torch.float32
    assert single.affine(tensor([1.0]), 2.0).dtype == torch.float64
    torch.testing.assert_close(single.icdf(tensor([0.3])), P.icdf(tensor([0.3])))


@pytest.mark.parametrize("name", ["log_prob", "cdf", "log_cdf", "icdf", "expectile", "cvar", "responsibilities"])
def test_arrays_give_arrays_and_numbers_tensors(name):
    function, x = getattr(P, name), np.array([0.2, 0.7])
    truth = function(torch.from_numpy(x))
    for numbers in (x, pd.Series(x), [0.2, 0.7]):
        found = function(numbers)
        assert isinstance(found, np.ndarray)
        np.testing.assert_array_equal(found, truth.numpy())
    assert torch.equal(function(0.2), truth[0])
    argument = {"expectile": "tau", "cvar": "alpha"}.get(name, "value")
    assert torch.equal(function(**{argument: 0.2}), truth[0])
    with pytest.raises(TypeError, match=argument):
        function()


# Construction


@pytest.mark.parametrize(
    ("name", "values", "got"),
    [
        ("weights", [NAN, 0.75], "nan"),
        ("weights", [INF, 0.75], "inf"),
        ("weights", [-0.25, 1.25], "-0.25"),
        ("weights", [0.25, 0.5], "0.75"),
        ("weights", [0.25, 0.750002], "1"),
        ("weights", [[0.5, 0.5], [0.5, 0.75]], "1.25"),
        ("weights", [0.0, 0.0], "0"),
        ("means", [NAN, 1.0], "nan"),
        ("means", [0.0, -INF], "-inf"),
        ("scales", [1.0, NAN], "nan"),
        ("scales", [1.0, INF], "inf"),
        ("scales", [1.0, -1e-9], "-1e-09"),
        ("scales", [[1.0, 1.0], [1.0, -3.0]], "-3"),
    ],
)
def test_constructor_refuses_values(name, values, got):
    refuses(lambda: NormalMixture(**{n: tensor(values if n == name else v) for n, v in VALID.items()}), name, got)


@pytest.mark.parametrize("name", VALID)
@pytest.mark.parametrize(
    ("bad", "got"),
    [
        (tensor([1.0, 2.0, 3.0]), "(3,)"),
        (torch.tensor([1j, 0]), "torch.complex64"),
        (["a", "b"], "text"),
        (None, "objects"),
        (meta(2), "meta"),
    ],
    ids=["shape", "complex", "text", "None", "device"],
)
@pytest.mark.parametrize("build", [NormalMixture, NormalMixture.from_logits], ids=["plain", "from_logits"])
def test_constructors_refuse_tensors(build, name, bad, got):
    arguments = [bad if n == name else tensor(v) for n, v in VALID.items()]
    shown = "logits" if name == "weights" and build == NormalMixture.from_logits else name
    refuses(lambda: build(*arguments), shown, got)


@pytest.mark.parametrize("shape", [(0,), (3, 0), ()])
def test_constructor_refuses_a_missing_component_axis(shape):
    refuses(lambda: NormalMixture(*torch.ones(3, *shape)), "weights", str(shape))


@pytest.mark.parametrize(("logits", "got"), [([NAN, 0.0], "nan"), ([INF, 0.0], "inf"), ([-INF, -INF], "-inf")])
def test_from_logits_refuses_values_under_the_name_they_came_with(logits, got):
    refuses(lambda: NormalMixture.from_logits(tensor(logits), tensor([0.0, 1.0]), tensor([1.0, 1.0])), "logits", got)


@pytest.mark.parametrize(
    ("x", "weights", "name", "got"),
    [
        (tensor([NAN, 1.0]), None, "x", "nan"),
        (tensor([0.0, -INF]), None, "x", "-inf"),
        (tensor([]), None, "x", "(0,)"),
        (tensor(1.0), None, "x", "()"),
        ("text", None, "x", "text"),
        (tensor([0.0, 1.0]), tensor([NAN, 1.0]), "weights", "nan"),
        (tensor([0.0, 1.0]), tensor([INF, 1.0]), "weights", "inf"),
        (tensor([0.0, 1.0]), tensor([-1.0, 2.0]), "weights", "-1"),
        (tensor([0.0, 1.0]), tensor([0.0, 0.0]), "weights", "0"),
        (tensor([0.0, 1.0]), tensor([1.0, 1.0, 1.0]), "weights", "(3,)"),
        (tensor([0.0, 1.0]), meta(2), "weights", "meta"),
    ],
)
def test_from_samples_refuses(x, weights, name, got):
    refuses(lambda: NormalMixture.from_samples(x, weights), "sample_weight" if name == "weights" else name, got)


@pytest.mark.parametrize(
    ("mixture", "got"),
    [
        (MixtureSameFamily(Categorical(torch.ones(2)), Laplace(torch.zeros(2), torch.ones(2))), "Laplace"),
        (Normal(0.0, 1.0), "Normal"),
        (P, "NormalMixture"),
        (None, "NoneType"),
    ],
)
def test_from_torch_refuses(mixture, got):
    refuses(lambda: NormalMixture.from_torch(mixture), "mixture", got)


@pytest.mark.parametrize(
    ("normals", "got"),
    [
        ([], "empty"),
        ([Normal(0.0, 1.0), Laplace(0.0, 1.0)], "Laplace"),
        ([Normal(torch.zeros(2), 1.0), Normal(torch.zeros(3), 1.0)], "(3,)"),
    ],
    ids=["empty", "Laplace", "shapes"],
)
def test_from_normals_refuses(normals, got):
    refuses(lambda: NormalMixture.from_normals(normals), "normals", got)


@pytest.mark.parametrize(
    ("weights", "got"),
    [(torch.ones(3) / 3, "(3,)"), (torch.tensor([0.5, 0.75]), "1.25"), (torch.tensor([NAN, 0.5]), "nan")],
)
def test_from_normals_refuses_weights(weights, got):
    refuses(lambda: NormalMixture.from_normals([Normal(0.0, 1.0)] * 2, weights), "weights", got)


@pytest.mark.parametrize(
    ("mixtures", "weights", "name", "got"),
    [
        ([], tensor([]), "mixtures", "empty"),
        ([P, Normal(0.0, 1.0)], tensor([0.5, 0.5]), "mixtures", "Normal"),
        ([P, PAIR.expand((3, 2)), P.expand((3,))], tensor([0.5, 0.25, 0.25]), "mixtures", "(3,)"),
        ([P, P], tensor([1.0]), "weights", "(1,)"),
        ([P, P], tensor(1.0), "weights", "()"),
        ([P, P], tensor([0.5, 0.75]), "weights", "1.25"),
        ([P, P], tensor([-0.5, 1.5]), "weights", "-0.5"),
        ([P, P], tensor([NAN, 0.5]), "weights", "nan"),
        ([P, P], meta(2), "weights", "meta"),
    ],
)
def test_mix_refuses(mixtures, weights, name, got):
    refuses(lambda: NormalMixture.mix(mixtures, weights), name, got)


# Methods

BAD_VALUES = {
    "shape": (tensor([0.5, 0.5, 0.5]), "(3,)"),
    "text": (["a", "b"], "text"),
    "complex": (torch.tensor([1j, 0j]), "torch.complex64"),
    "device": (meta(2), "meta"),
}
FUNCTIONS = {
    "log_prob": ("value", lambda p, x: p.log_prob(x)),
    "cdf": ("value", lambda p, x: p.cdf(x)),
    "log_cdf": ("value", lambda p, x: p.log_cdf(x)),
    "icdf": ("value", lambda p, x: p.icdf(x)),
    "low": ("low", lambda p, x: p.prob(x, tensor(9.0))),
    "high": ("high", lambda p, x: p.prob(tensor(0.0), x)),
}


@pytest.mark.parametrize(("bad", "got"), BAD_VALUES.values(), ids=BAD_VALUES)
@pytest.mark.parametrize(("name", "function"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_of_a_value_refuse(name, function, bad, got):
    refuses(lambda: function(PAIR, bad), name, got)


@pytest.mark.parametrize(("name", "function"), [f for f in FUNCTIONS.values() if f is not FUNCTIONS["icdf"]])
def test_functions_of_a_value_refuse_nan(name, function):
    refuses(lambda: function(PAIR, tensor([NAN, 0.5])), name, "1 of 2", "must not be NaN")


BUILT = {
    "plain": P,
    "from_samples": ATOMS,
    "mix": MIXED,
    "affine": P.affine(1.0, 2.0),
    "prune": P.prune(0.5),
    "samples moved": ATOMS.affine(1.0, 2.0),
}


@pytest.mark.parametrize("p", BUILT.values(), ids=BUILT)
def test_every_way_to_build_a_mixture_keeps_its_checks(p):
    refuses(lambda: p.cdf(tensor(NAN)), "value", "1")
    refuses(lambda: p.icdf(tensor(1.5)), "value", "1.5")
    refuses(lambda: p.expectile(1.5), "tau", "1.5")
    refuses(lambda: p.cvar(1.5), "alpha", "1.5")
    refuses(lambda: p.affine(NAN, 1.0), "loc", "nan")


LEVELS = {
    "icdf": (lambda level: P.icdf(level), "value", "[0, 1]", [-0.1, 1.1, NAN, INF]),
    "expectile": (lambda level: P.expectile(level), "tau", "(0, 1)", [0.0, 1.0, -0.1, 1.1, NAN]),
    "cvar": (lambda level: P.cvar(level), "alpha", "(0, 1]", [0.0, -0.1, 1.1, NAN]),
    "upper cvar": (lambda level: P.cvar(level, "upper"), "alpha", "(0, 1]", [0.0, -0.1, 1.1, NAN]),
}


@pytest.mark.parametrize(
    ("function", "name", "rule", "level"),
    [(f, name, rule, level) for f, name, rule, levels in LEVELS.values() for level in levels],
)
def test_levels_out_of_range_are_refused_with_the_range(function, name, rule, level):
    refuses(lambda: function(tensor([0.5, level])), name, f"{level:g}", rule)


LENIENT = {
    "expectile": ("tau", lambda x: PAIR.expectile(x)),
    "cvar": ("alpha", lambda x: PAIR.cvar(x)),
    "loc": ("loc", lambda x: PAIR.affine(x, 1.0)),
    "scale": ("scale", lambda x: PAIR.affine(0.0, x)),
}


@pytest.mark.parametrize("kind", BAD_VALUES)
@pytest.mark.parametrize(("name", "function"), LENIENT.values(), ids=LENIENT)
def test_functions_that_take_numbers_still_refuse_tensors_that_do_not_fit(name, function, kind):
    bad, got = BAD_VALUES[kind]
    refuses(lambda: function(bad), name, got)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("name", ["loc", "scale"])
def test_affine_refuses_values(name, bad):
    refuses(lambda: P.affine(**{"loc": 0.0, "scale": 1.0, name: bad}), name, f"{bad}")


@pytest.mark.parametrize("tail", ["left", "", None, 1])
def test_cvar_refuses_an_unknown_tail(tail):
    refuses(lambda: P.cvar(0.5, tail), "tail", repr(tail), '"lower" or "upper"')


@pytest.mark.parametrize("threshold", [0.75, 1.0, NAN])
def test_prune_refuses_to_leave_nothing(threshold):
    refuses(lambda: P.prune(threshold), "threshold", f"{threshold:g}")


def test_expand_refuses_a_shape_that_does_not_fit():
    refuses(lambda: PAIR.expand((3,)), "batch_shape", "(3,)")


# Distances

DISTANCES = {
    "cramer_distance": cramer_distance,
    "lp_distance": lambda p, q: lp_distance(p, q, 1.0),
    "lp_distance 2": lp_distance,
}
BAD_SIDES = {
    "NaN": (tensor([NAN, 0.5]), "nan"),
    "infinity": (tensor([0.5, -INF]), "-inf"),
    "empty": (tensor([]), "(0,)"),
    "scalar": (tensor(1.0), "()"),
    "shape": (tensor([[0.5], [1.0], [2.0]]), "(3, 1)"),
    "device": (meta(2), "meta"),
    "None": (None, "NoneType"),
    "Normal": (Normal(0.0, 1.0), "Normal"),
    "mixture on another device": (NormalMixture(*[meta(2)] * 3, validate_args=False), "meta"),
}


@pytest.mark.parametrize(("bad", "got"), BAD_SIDES.values(), ids=BAD_SIDES)
@pytest.mark.parametrize("distance", DISTANCES.values(), ids=DISTANCES)
@pytest.mark.parametrize("side", ["p", "q"])
def test_distances_refuse(distance, side, bad, got):
    refuses(lambda: distance(bad, P) if side == "p" else distance(P, bad), side, got)


@pytest.mark.parametrize("reduction", ["avg", "Mean", "", None, 0])
@pytest.mark.parametrize(
    "call",
    [
        lambda r: cramer_loss(P, P, reduction=r),
        lambda r: density_l2_loss(P, P, reduction=r),
        lambda r: CramerLoss(reduction=r),
    ],
    ids=["cramer_loss", "density_l2_loss", "CramerLoss"],
)
def test_losses_refuse_an_unknown_reduction(call, reduction):
    refuses(lambda: call(reduction), "reduction", repr(reduction), "none, mean, sum")


@pytest.mark.parametrize("order", [0.999, 0.0, -2.0, NAN, INF])
def test_lp_distance_refuses_orders_below_one_or_infinite(order):
    refuses(lambda: lp_distance(P, P, order), "order", f"{order}", ">= 1")


# One bad number at a random place

BAD_NUMBERS = {
    "weights": [NAN, INF, -INF, -0.5, 1.5],
    "sample_weight": [NAN, INF, -INF, -0.5],  # any positive sum will do
    "means": [NAN, INF, -INF],
    "scales": [NAN, INF, -INF, -1e-3, -5.0],
    "logits": [NAN, INF],
    "x": [NAN, INF, -INF],
    "p": [NAN, INF, -INF],
    "q": [NAN, INF, -INF],
    "y": [NAN, INF, -INF],
    "target": [NAN, INF, -INF],
}
CALLS = {
    "NormalMixture": (NormalMixture, ["weights", "means", "scales"]),
    "from_logits": (NormalMixture.from_logits, ["logits", "means", "scales"]),
    "from_samples": (NormalMixture.from_samples, ["x", "sample_weight"]),
    "cramer_loss": (lambda target: cramer_loss(P.expand(target.shape), target), ["target"]),
    "cramer_distance": (lambda p, q: cramer_distance(p.flatten(), q.flatten()), ["p", "q"]),
    "crps": (lambda y: crps(P.expand(y.shape), y), ["y"]),
}


@pytest.mark.parametrize(("call", "names"), CALLS.values(), ids=CALLS)
@given(data=st.data())
@settings(max_examples=25, deadline=None, derandomize=True)
def test_one_bad_number_is_found_wherever_it_is_and_nothing_changes(call, names, data):
    shape = (*data.draw(st.lists(st.integers(1, 3), max_size=2)), data.draw(st.integers(1, 4)))
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 100)))
    arguments = {n: torch.rand(shape, generator=generator, dtype=dtype) for n in names}
    if "weights" in arguments:
        arguments["weights"] = arguments["weights"].softmax(-1)
    call(**arguments)  # valid so far
    name = data.draw(st.sampled_from(names))
    place = data.draw(st.integers(0, math.prod(shape) - 1))
    numbers = BAD_NUMBERS[name]
    bad = data.draw(st.sampled_from(numbers))
    arguments[name].view(-1)[place] = bad
    before = {n: x.clone() for n, x in arguments.items()}
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match=rf"^([\w ]* and )?{name} .*must .*; got ") as caught:
        call(**arguments)
    if not math.isfinite(bad):
        assert f"{bad:g}" in str(caught.value)
    for n, x in arguments.items():
        torch.testing.assert_close(x, before[n], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(torch.get_rng_state(), state)


@given(data=st.data())
@settings(max_examples=30, deadline=None, derandomize=True)
def test_one_bad_level_is_found_wherever_it_is(data):
    method, name = data.draw(st.sampled_from([("icdf", "value"), ("expectile", "tau"), ("cvar", "alpha")]))
    levels = torch.full((data.draw(st.integers(1, 4)), 2), 0.5, dtype=torch.float64)
    bad = data.draw(st.one_of(st.just(NAN), st.floats(max_value=-1e-300), st.floats(min_value=1.0001)))
    levels.view(-1)[data.draw(st.integers(0, levels.numel() - 1))] = bad
    refuses(lambda: getattr(PAIR, method)(levels), name, "")


def test_the_error_is_a_plain_value_error_that_leaves_the_package_usable():
    with pytest.raises(ValueError, match="scales must be >= 0"):
        NormalMixture(tensor([1.0]), tensor([0.0]), tensor([-1.0]))
    assert cramix.cramer_loss(P, P) == 0


def test_infinite_weights_of_both_signs_are_an_error_and_no_warning() -> None:
    for shape in ((2,), (1, 2), (3, 2)):
        weights = torch.tensor([torch.inf, -torch.inf]).expand(shape).contiguous()
        refuses(
            lambda weights=weights: NormalMixture(weights, torch.zeros(2), torch.ones(2)), "weights", "inf", "finite"
        )


@pytest.mark.parametrize("method", ["icdf", "expectile", "cvar"])
def test_levels_that_do_not_fit_a_batch_are_refused_with_the_shape_that_does(method):
    p = P.expand((3,))
    refuses(lambda: getattr(p, method)([0.1, 0.9]), "mixture", "for the same levels of each mixture use shape (2, 1)")
    assert getattr(p, method)([[0.1], [0.9]]).shape == (2, 3)
    refuses(lambda: getattr(P.expand((3, 4)), method)([0.1, 0.9]), "mixture", "use shape (2, 1, 1)")
