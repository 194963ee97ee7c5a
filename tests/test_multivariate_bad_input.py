"""Bad input to multivariate mixtures: a ValueError with the name, the rule and the value; nothing changed."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cramix import Diagonal, Factor, Full, MultivariateNormalMixture, NormalMixture, Spherical, Tied
from tests.multivariate_oracle import generator, tensor
from tests.refusals import meta, refuses

NAN, INF = math.nan, math.inf
DTYPES = [torch.float32, torch.float64]


def test_refuses_notices_a_wrong_name_a_wrong_rule_and_a_wrong_value():
    def call(text="means must be finite; got nan (1 of 6 values). Drop them."):
        raise ValueError(text)

    refuses(call, "means", "nan", "finite")
    for name, got, rule in (("mean", "nan", "finite"), ("means", "inf", "finite"), ("means", "nan", "symmetric")):
        with pytest.raises(AssertionError):
            refuses(call, name, got, rule)
    with pytest.raises(AssertionError):
        refuses(lambda: call("means must be finite; got nan"), "means", "nan")
    with pytest.raises(pytest.fail.Exception):
        refuses(lambda: None, "means", "nan")


WEIGHTS, MEANS = tensor([0.25, 0.75]), tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])
EYE = torch.eye(3).double()
VALUES = {
    Full: EYE.repeat(2, 1, 1),
    Tied: EYE,
    Diagonal: torch.ones(2, 3).double(),
    Spherical: torch.ones(2).double(),
    Factor: EYE.repeat(2, 1, 1),
}
NAMES = {Full: "covariances", Tied: "covariances", Diagonal: "variances", Spherical: "variances", Factor: "factors"}
every_kind = pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.name)
P = MultivariateNormalMixture(WEIGHTS, MEANS, VALUES[Full])
PAIR = P.expand((2,))
POINTS = MultivariateNormalMixture.from_samples(MEANS)


def build(weights=WEIGHTS, means=MEANS, covariances=VALUES[Full], **options):
    return MultivariateNormalMixture(weights, means, covariances, **options)


# Weights and means


@pytest.mark.parametrize(
    ("name", "values", "got", "rule"),
    [
        ("weights", [NAN, 0.75], "nan", "finite"),
        ("weights", [INF, 0.75], "inf", "finite"),
        ("weights", [-0.25, 1.25], "-0.25", ">= 0"),
        ("weights", [0.25, 0.5], "0.75", "sum to 1"),
        ("weights", [[0.5, 0.5], [0.5, 0.75]], "1.25", "sum to 1"),
        ("weights", [1.0], "2", "sum to 1"),
        ("weights", 1.0, "2", "sum to 1"),
        ("means", [[NAN, 1.0, 2.0]] * 2, "nan", "finite"),
        ("means", [[0.0, 1.0, 2.0], [0.0, -INF, 2.0]], "-inf", "finite"),
    ],
)
@every_kind
def test_constructor_refuses_values(kind, name, values, got, rule):
    refuses(lambda: build(**{"covariances": kind(VALUES[kind]), name: tensor(values)}), name, got, rule)


@pytest.mark.parametrize(
    ("bad", "got", "rule"),
    [
        (torch.tensor([1j, 0]), "torch.complex64", "real"),
        (meta(2), "meta", "on one device"),
        (["a", "b"], "text", "numbers"),
        (None, "objects", "numbers"),
    ],
    ids=["complex", "device", "text", "None"],
)
@pytest.mark.parametrize("name", ["weights", "means", "covariances"])
def test_constructor_refuses_what_holds_no_numbers(name, bad, got, rule):
    if isinstance(bad, torch.Tensor) and name != "weights":
        bad = bad.unsqueeze(-1).expand(2, 3) if name == "means" else bad[:, None, None].expand(2, 3, 3)
    refuses(lambda: build(**{name: bad}), name, got, rule)


@every_kind
def test_kinds_are_promoted_and_refused_as_tensors_are(kind):
    for values in (VALUES[kind].float(), VALUES[kind].long(), VALUES[kind].tolist(), VALUES[kind].numpy()):
        assert build(covariances=kind(values)) == build(covariances=kind(VALUES[kind]))
    assert build(WEIGHTS.float(), MEANS.float(), kind(VALUES[kind])).dtype == torch.float64
    refuses(lambda: build(covariances=kind(VALUES[kind].to("meta"))), "covariances", "meta", "on one device")


@pytest.mark.parametrize("validate", [True, False])
@pytest.mark.parametrize("shape", [(3,), (0, 3), (2, 0), (0, 0), ()])
def test_constructor_refuses_means_without_components_or_coordinates(shape, validate):
    refuses(lambda: build(means=torch.zeros(shape).double(), validate_args=validate), "means", str(shape), "k, d >= 1")


@pytest.mark.parametrize("validate", [True, False])
@pytest.mark.parametrize("name", ["weights", "covariances"])
def test_constructor_refuses_to_have_no_components(name, validate):
    empty = {"weights": torch.ones(0).double(), "covariances": Spherical(torch.ones(0).double())}
    arguments = {"weights": tensor([1.0]), "covariances": Tied(EYE), name: empty[name]}
    refuses(lambda: build(means=MEANS[:1], validate_args=validate, **arguments), "weights", "(0,)", "k >= 1")


@pytest.mark.parametrize(
    ("arguments", "got"),
    [
        ({"weights": tensor([0.25, 0.25, 0.5])}, "weights (3,)"),
        ({"means": torch.zeros(4, 3).double()}, "means (4,)"),
        ({"covariances": EYE.repeat(4, 1, 1)}, "covariances (4,)"),
        ({"covariances": Diagonal(torch.ones(4, 3).double())}, "covariances (4,)"),
        ({"covariances": Spherical(torch.ones(4).double())}, "covariances (4,)"),
        ({"covariances": Factor(torch.ones(4, 5, 3).double())}, "covariances (4,)"),
        ({"means": torch.zeros(5, 2, 3).double(), "covariances": Tied(EYE.repeat(4, 1, 1))}, "covariances (4, 1)"),
    ],
)
def test_constructor_refuses_shapes_that_do_not_broadcast(arguments, got):
    refuses(lambda: build(**arguments), "covariances", got, "broadcast")
    refuses(lambda: build(**arguments, validate_args=False), "covariances", got, "broadcast")


# Covariances

SHAPES = {
    Full: [(3, 3), (3,), (), (2, 3, 2), (2, 2, 3), (2, 4, 4), (2, 3), (2, 1, 1)],
    Tied: [(3,), (), (2, 2), (3, 2), (4, 4), (1, 1)],
    Diagonal: [(3,), (), (2, 2), (2, 1)],
    Spherical: [()],
    Factor: [(3, 3), (3,), (), (2, 3, 2), (2, 5, 1)],
}


@pytest.mark.parametrize("validate", [True, False])
@pytest.mark.parametrize(("kind", "shape"), [(kind, shape) for kind, shapes in SHAPES.items() for shape in shapes])
def test_kinds_refuse_shapes_that_do_not_fit_the_dimension(kind, shape, validate):
    covariances = kind(torch.ones(shape).double())
    refuses(lambda: build(covariances=covariances, validate_args=validate), NAMES[kind], str(shape))


@pytest.mark.parametrize(("bad", "got"), [(NAN, "nan"), (INF, "inf"), (-INF, "-inf")])
@every_kind
def test_kinds_refuse_what_is_not_finite(kind, bad, got):
    values = VALUES[kind].clone()
    values.view(-1)[-1] = bad
    refuses(lambda: build(covariances=kind(values)), NAMES[kind], got, "finite")


@pytest.mark.parametrize("kind", [Diagonal, Spherical])
@pytest.mark.parametrize("bad", [-1e-18, -3.0])
def test_variances_are_not_negative(kind, bad):
    values = VALUES[kind].clone()
    values.view(-1)[-1] = bad
    refuses(lambda: build(covariances=kind(values)), "variances", f"{bad:.3g}", ">= 0")


def with_matrix(kind, matrix):
    """Covariances of the kind, one of them the matrix."""
    if kind is Tied:
        return Tied(matrix)
    return Full(torch.stack([torch.eye(3, dtype=matrix.dtype), matrix]))


dense = pytest.mark.parametrize("kind", [Full, Tied], ids=["full", "tied"])


@dense
@pytest.mark.parametrize("dtype", DTYPES)
def test_covariances_are_symmetric_up_to_rounding(kind, dtype):
    def mixture(skew, size=1.0):
        matrix = torch.eye(3, dtype=dtype)
        matrix[0, 1] = skew
        return build(WEIGHTS.to(dtype), MEANS.to(dtype), with_matrix(kind, size * matrix))

    eps = torch.finfo(dtype).eps
    for size in (1.0, 1e-12, 1e12):
        refuses(lambda size=size: mixture(1e-2, size), "covariances", f"{1e-2 * size:.3g}", "symmetric")
        refuses(lambda size=size: mixture(1e4 * eps, size), "covariances", "a difference of", "symmetric")
        close_to_symmetric = mixture(4 * eps, size)
        assert close_to_symmetric.log_prob(MEANS[0].to(dtype)).isfinite()


@dense
@pytest.mark.parametrize("size", [1.0, 1e-12, 1e12])
@pytest.mark.parametrize("least", [-1.0, -1e-3, -1e-10])
def test_covariances_are_positive_semi_definite(kind, least, size):
    turn = torch.linalg.qr(torch.randn(3, 3, generator=generator(), dtype=torch.float64)).Q
    matrix = size * turn @ torch.diag(tensor([1.0, 0.5, least])) @ turn.T
    matrix = (matrix + matrix.T) / 2
    refuses(lambda: build(covariances=with_matrix(kind, matrix)), "covariances", f"{size * least:.1g}"[:2], "positive")


@dense
def test_a_negative_variance_is_no_covariance(kind):
    refuses(lambda: build(covariances=with_matrix(kind, torch.diag(tensor([1.0, -0.5, 1.0])))), "covariances", "-0.5")
    refuses(lambda: build(covariances=with_matrix(kind, -1e-30 * EYE)), "covariances", "-1e-30")
    zero_diagonal = tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    refuses(lambda: build(covariances=with_matrix(kind, zero_diagonal)), "covariances", "-1")


@dense
@pytest.mark.parametrize("dtype", DTYPES)
def test_eigenvalues_negative_by_rounding_are_accepted(kind, dtype):
    for diagonal in ([1.0, 1.0, -1e-18], [1.0, 0.0, -torch.finfo(dtype).eps], [0.0, 0.0, 0.0]):
        covariances = with_matrix(kind, torch.diag(torch.tensor(diagonal, dtype=dtype)))
        p = build(WEIGHTS.to(dtype), MEANS.to(dtype), covariances)
        assert (p.project(torch.eye(3, dtype=dtype)).scales >= 0).all()
        assert p.sample((5,)).isfinite().all()


@pytest.mark.parametrize(("d", "r"), [(1, 1), (2, 1), (3, 2), (10, 3), (40, 1), (40, 39), (5, 1000), (100, 60)])
@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_gram_matrix_is_accepted(d, r, size, dtype):
    s = size * torch.randn(50, 1, r, d, generator=generator(), dtype=dtype)
    s = s * torch.logspace(-3, 3, d, dtype=dtype)
    covariances = s.mT @ s
    p = MultivariateNormalMixture(torch.ones(1, dtype=dtype), torch.zeros(1, d, dtype=dtype), covariances)
    assert p.sample((2,)).isfinite().all()
    # Yet the same matrices with an axis turned inside out are not.
    bad = covariances - 1.5 * torch.diag_embed(covariances.diagonal(dim1=-2, dim2=-1))
    refuses(lambda: build(p.weights, p.means, bad), "covariances", "eigenvalue -", "positive semi-definite")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_covariances_of_half_precision_are_checked_too(dtype):
    p = build(WEIGHTS.to(dtype), MEANS.to(dtype), VALUES[Full].to(dtype))
    assert p.covariance.dtype == dtype
    refuses(lambda: build(p.weights, p.means, -p.covariances), "covariances", "-1", "positive")


def test_any_factor_is_valid():
    for r in (1, 2, 3, 7):
        p = build(covariances=Factor(torch.randn(2, r, 3, generator=generator(), dtype=torch.float64)))
        assert p.sample((5,)).isfinite().all()


# Samples


@pytest.mark.parametrize(
    ("x", "weights", "name", "got", "rule"),
    [
        (tensor([[NAN, 1.0]]), None, "x", "nan", "finite"),
        (tensor([[0.0, -INF]]), None, "x", "-inf", "finite"),
        (tensor([1.0, 2.0]), None, "x", "(2,)", "n, d >= 1"),
        (tensor(1.0), None, "x", "()", "n, d >= 1"),
        (torch.zeros(0, 2).double(), None, "x", "(0, 2)", "n, d >= 1"),
        (torch.zeros(2, 0).double(), None, "x", "(2, 0)", "n, d >= 1"),
        ([["a", "b"]], None, "x", "text", "numbers"),
        (MEANS, tensor([NAN, 1.0]), "weights", "nan", "finite"),
        (MEANS, tensor([INF, 1.0]), "weights", "inf", "finite"),
        (MEANS, tensor([-1.0, 2.0]), "weights", "-1", ">= 0"),
        (MEANS, tensor([0.0, 0.0]), "weights", "0", "positive sum"),
        (MEANS, tensor([1.0, 1.0, 1.0]), "weights", "(3,)", "broadcast"),
    ],
)
def test_from_samples_refuses(x, weights, name, got, rule):
    name = "sample_weight" if name == "weights" else name
    refuses(lambda: MultivariateNormalMixture.from_samples(x, weights), name, got, rule)


# Values

PAIR_IN_FOUR = PAIR.affine(0.0, torch.eye(4, 3).double())
DENSITIES = {
    "log_prob": ("value", lambda x: PAIR.log_prob(x)),
    "responsibilities": ("value", lambda x: PAIR.responsibilities(x)),
    "condition": (
        "values",
        lambda x: PAIR_IN_FOUR.condition([0, 1, 2], x),
    ),
}


@pytest.mark.parametrize(
    ("bad", "got", "rule"),
    [
        (tensor([0.0, 1.0]), "(2,)", "(*sample, *batch, 3)"),
        (tensor(0.0), "()", "(*sample, *batch, 3)"),
        (torch.zeros(3, 1).double(), "(3, 1)", "(*sample, *batch, 3)"),
        (torch.zeros(5, 3).double(), "(5,)", "broadcast"),
        (tensor([0.0, NAN, 1.0]), "1 of 3", "NaN"),
        (["a", "b", "c"], "text", "numbers"),
        (meta(3), "meta", "on cpu"),
    ],
    ids=["shape", "scalar", "column", "batch", "NaN", "text", "device"],
)
@pytest.mark.parametrize(("name", "function"), DENSITIES.values(), ids=DENSITIES)
def test_densities_refuse_values(name, function, bad, got, rule):
    refuses(lambda: function(bad), name, got, rule)


@pytest.mark.parametrize(
    ("dims", "got"),
    [([3], "[3]"), ([-4], "[-4]"), ([0, 0], "[0, 0]"), ([0, -3], "[0, -3]"), ([], "[]"), ([0.5], "[0.5]"),
     ([0, 1, 2, 0], "[0, 1, 2, 0]"), (["0"], "['0']"), (None, "None")],
)  # fmt: skip
@pytest.mark.parametrize(
    "function",
    [P.marginal, POINTS.marginal, lambda dims: P.condition(dims, tensor([0.0, 0.0]))],
    ids=["marginal", "of points", "condition"],
)
def test_dims_are_different_coordinates(function, dims, got):
    refuses(lambda: function(dims), "dims", got, "different coordinates from 0 to 2")


@pytest.mark.parametrize("dim", [3, -4, 100])
def test_a_number_is_a_coordinate_too(dim):
    refuses(lambda: P.marginal(dim), "dims", f"{dim}", "from 0 to 2")


def test_condition_leaves_a_coordinate_free():
    refuses(lambda: P.condition([2, 0, 1], tensor([0.0, 0.0, 0.0])), "dims", "all 3", "leave at least one")


@pytest.mark.parametrize(
    ("bad", "got", "rule"),
    [
        (tensor([1.0, 0.0, 0.0]), "(3,)", "(t, 3)"),
        (tensor([[1.0, 0.0]]), "(1, 2)", "(t, 3)"),
        (torch.ones(2, 1, 3).double(), "(2, 1, 3)", "(t, 3)"),
        (tensor([[1.0, NAN, 0.0]]), "nan", "finite"),
        (tensor([[1.0, INF, 0.0]]), "inf", "finite"),
        ([["a", "b", "c"]], "text", "numbers"),
    ],
)
def test_project_refuses_directions(bad, got, rule):
    refuses(lambda: P.project(bad), "directions", got, rule)


@pytest.mark.parametrize(
    ("loc", "scale", "name", "got"),
    [
        (0.0, tensor([1.0, 0.0, 0.0]), "scale", "(3,)"),
        (0.0, tensor([[1.0, 0.0]]), "scale", "(1, 2)"),
        (0.0, torch.ones(5, 2, 3).double(), "scale", "(5,)"),
        (0.0, tensor([[1.0, NAN, 0.0]]), "scale", "nan"),
        (0.0, NAN, "scale", "nan"),
        (0.0, tensor([[1.0, -INF, 0.0]]), "scale", "-inf"),
        (0.0, [["a", "b", "c"]], "scale", "text"),
        (0.0, None, "scale", "objects"),
        (tensor([1.0, 2.0]), EYE, "loc", "(2,)"),
        (tensor([1.0, 2.0]), 1.0, "loc", "(2,)"),
        (torch.ones(5, 3).double(), EYE, "loc", "(5,)"),
        (tensor([1.0, NAN, 0.0]), EYE, "loc", "nan"),
        (None, EYE, "loc", "objects"),
    ],
)
def test_affine_refuses(loc, scale, name, got):
    # The rule names both arguments where they must fit each other.
    with pytest.raises(ValueError, match=rf"\b{name}\b.*; got .*") as caught:
        PAIR.affine(loc, scale)
    assert got in str(caught.value).split("; got", 1)[1]


# Rearranging


@pytest.mark.parametrize("threshold", [0.75, 1.0, NAN])
def test_prune_refuses_to_leave_nothing(threshold):
    with pytest.raises(ValueError, match=rf"^threshold must leave a component; got {threshold:g}, largest weight 0.75"):
        P.prune(threshold)


@pytest.mark.parametrize("shape", [(3,), (), (2, 3)])
def test_expand_refuses_a_shape_that_does_not_fit(shape):
    refuses(lambda: PAIR.expand(shape), "batch_shape", str(shape), "extend (2,)")


LINE = NormalMixture(WEIGHTS, tensor([0.0, 1.0]), tensor([1.0, 1.0]))


@pytest.mark.parametrize(
    ("mixtures", "weights", "name", "got"),
    [
        ([], tensor([1.0]), "mixtures", "empty"),
        ([P, P.marginal([0, 1])], tensor([0.5, 0.5]), "mixtures", "[2, 3]"),
        ([P, P], tensor([1.0]), "weights", "(1,)"),
        ([P, P], tensor(1.0), "weights", "()"),
        ([P, P], tensor([0.5, 0.75]), "weights", "1.25"),
        ([P, P], tensor([-0.5, 1.5]), "weights", "-0.5"),
        ([P, P], tensor([NAN, 1.5]), "weights", "nan"),
        ([P.expand((3,)), PAIR], tensor([0.5, 0.5]), "mixtures[1]", "(3,)"),
        ([P, LINE], tensor([0.5, 0.5]), "mixtures", "NormalMixture"),
        ([P, None], tensor([0.5, 0.5]), "mixtures", "NoneType"),
    ],
)
def test_mix_refuses(mixtures, weights, name, got):
    refuses(lambda: MultivariateNormalMixture.mix(mixtures, weights), name, got)


# What is made of a mixture checks values as it does

MADE = {
    "project": lambda p: p.project(EYE),
    "marginal of a number": lambda p: p.marginal(0),
    "marginal": lambda p: p.marginal([0, 1]),
    "condition": lambda p: p.condition([0], tensor([0.0])),
    "affine": lambda p: p.affine(0.0, EYE),
    "prune": lambda p: p.prune(),
    "expand": lambda p: p.expand((2,)),
    "mix": lambda p: p.mix([p, p], tensor([0.5, 0.5])),
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_what_is_made_of_a_mixture_checks_values_if_it_does(make):
    for checks in (True, False):
        p = make(build(validate_args=checks))
        value = torch.full(p.event_shape, NAN, dtype=torch.float64)
        if checks:
            refuses(lambda p=p, value=value: p.log_prob(value), "value", "of", "NaN")
        else:
            assert p.log_prob(value).isnan().all()


def test_points_check_directions():
    for points in (POINTS, POINTS.mix([POINTS, POINTS], tensor([0.5, 0.5])), POINTS.affine(0.0, EYE)):
        refuses(lambda points=points: points.project(NAN * EYE), "directions", "nan", "finite")


# One bad number at a random place


@every_kind
@given(data=st.data())
@settings(max_examples=25, deadline=None, derandomize=True)
def test_one_bad_number_is_found_wherever_it_is_and_nothing_changes(kind, data):
    batch = data.draw(st.lists(st.integers(1, 3), max_size=2))
    dtype = data.draw(st.sampled_from(DTYPES))
    arguments = {
        "weights": WEIGHTS.to(dtype).repeat(*batch, 1),
        "means": MEANS.to(dtype).repeat(*batch, 1, 1),
        "covariances": VALUES[kind].to(dtype).repeat(*batch, *[1] * VALUES[kind].ndim),
    }

    def call():
        return MultivariateNormalMixture(arguments["weights"], arguments["means"], kind(arguments["covariances"]))

    call()  # valid so far
    name = data.draw(st.sampled_from(list(arguments)))
    bad = data.draw(st.sampled_from([NAN, INF, -INF]))
    place = data.draw(st.integers(0, arguments[name].numel() - 1))
    arguments[name].view(-1)[place] = bad
    before = {n: x.clone() for n, x in arguments.items()}
    state = torch.get_rng_state()
    refuses(call, NAMES[kind] if name == "covariances" else name, f"{bad:g}", "finite")
    for n, x in arguments.items():
        torch.testing.assert_close(x, before[n], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(torch.get_rng_state(), state)


def test_condition_refuses_infinite_values():
    p = MultivariateNormalMixture(WEIGHTS, MEANS, EYE.expand(2, 3, 3))
    refuses(lambda: p.condition([0], tensor([INF])), "values", "inf", "finite")


def _nan_in(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x.view(-1)[0] = torch.nan
    return x


@pytest.mark.parametrize("kind", [Full, Tied, Diagonal, Spherical, Factor])
def test_what_passes_the_short_check_of_gpus_passes_the_whole_one(kind: type) -> None:
    weights, means = torch.tensor([0.25, 0.75]), torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    good = {
        Full: torch.eye(3).expand(2, 3, 3) + 0.2,
        Tied: torch.eye(3) + 0.2,
        Diagonal: torch.tensor([[1.0, 0.0, 2.0], [1.0, 1.0, 1.0]]),
        Spherical: torch.tensor([0.0, 2.0]),
        Factor: torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(1)),
    }[kind]

    def short(weights: torch.Tensor, means: torch.Tensor, values: torch.Tensor) -> bool:
        return bool(MultivariateNormalMixture(weights, means, kind(values), validate_args=False)._evidence())

    assert short(weights, means, good)
    bad = [(2 * weights, means, good), (weights - 0.5, means, good), (_nan_in(weights), means, good)]
    bad += [(weights, _nan_in(means), good), (weights, means, _nan_in(good)), (weights, means, good * torch.inf)]
    if kind is not Factor:
        bad.append((weights, means, -good))
    if kind in (Full, Tied):
        bad.append((weights, means, good + torch.ones(3, 3).triu(1)))
    for values in bad:
        assert not short(*values)
        with pytest.raises(ValueError, match="must"):
            MultivariateNormalMixture(values[0], values[1], kind(values[2]))
