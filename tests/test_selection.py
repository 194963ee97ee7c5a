"""The choice of the number of components: known numbers are found, criteria are those of scikit-learn."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture
from torch import Tensor

from cramix import ConvergenceWarning, MultivariateNormalMixture, NormalMixture, fit, select
from cramix.fitting import MergeDown, Step
from cramix.fitting.features import Data
from cramix.fitting.held_out import Folds, compare
from cramix.fitting.merge import merged
from cramix.fitting.solve import Options, prepare

D = torch.float64


def blobs(n: int, k: int, d: int = 2, seed: int = 0, draw: int = 0) -> Tensor:
    """k round clusters of scale 1/2 on a grid of step 4; the places by seed, the samples by draw."""
    grid = torch.cartesian_prod(*[4 * torch.arange(4, dtype=D)] * d).view(-1, d)
    places = grid[torch.randperm(len(grid), generator=torch.Generator().manual_seed(seed))[:k]]
    g = torch.Generator().manual_seed(1000 + draw)
    return places[torch.arange(n) % k] + 0.5 * torch.randn(n, d, generator=g, dtype=D)


@pytest.mark.parametrize(("k", "d"), [(1, 2), (3, 1), (5, 3)])
def test_both_criteria_find_the_number_of_clusters(k: int, d: int) -> None:
    choice = select(blobs(400, k, d, seed=k), range(1, 8), generator=torch.Generator().manual_seed(0))
    assert choice.by_bic == k
    # A held-out score sees little harm in more components, and much in fewer.
    right = choice.held_out[k]
    assert choice.by_held_out >= k
    assert choice.held_out[choice.by_held_out].mean - right.mean < right.error / 3
    assert all(choice.held_out[fewer].mean < right.mean - right.error for fewer in range(1, k))
    assert list(choice.results) == list(range(1, 8)) == list(choice.held_out)
    assert all(result.mixture.n_components == count for count, result in choice.results.items())


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical"])
def test_criteria_are_those_of_scikit_learn(covariance_type: str) -> None:
    x = blobs(200, 3)
    choice = select(x, [2, 3], covariance_type=covariance_type, folds=0, generator=torch.Generator().manual_seed(1))
    for k, result in choice.results.items():
        model = result.mixture.to_sklearn()
        assert choice.bic[k] == pytest.approx(model.bic(x.numpy()), rel=1e-9)
        assert result.aic == pytest.approx(model.aic(x.numpy()), rel=1e-9)
        assert isinstance(model, GaussianMixture)
        assert model.covariance_type == covariance_type
    assert choice.held_out == {}
    with pytest.raises(ValueError, match="no held-out score: folds is 0, or too few samples are left to fit"):
        _ = choice.by_held_out


def test_each_fit_is_as_good_as_one_by_itself() -> None:
    """With fewer or more components than clusters there are many optima, and the path ends near the best."""
    x = blobs(600, 5, seed=3)
    choice = select(x, range(1, 7), folds=0, generator=torch.Generator().manual_seed(2))
    for k, result in choice.results.items():
        alone = fit(x, k, generator=torch.Generator().manual_seed(3))
        assert result.log_likelihood >= alone.log_likelihood - {5: 1e-4, 6: 0.02}.get(k, 0.1)
    likelihoods = [result.log_likelihood for result in choice.results.values()]
    assert np.all(np.diff(likelihoods) > 0)


def test_the_held_out_score_is_that_of_new_samples() -> None:
    x, fresh = blobs(600, 3, draw=1), blobs(30_000, 3, draw=2)
    scale = torch.tensor([1e-3, 1e4], dtype=D)
    choice = select(x * scale, [3], generator=torch.Generator().manual_seed(4))
    new = choice.results[3].mixture.log_prob(fresh * scale).mean().item()
    score = choice.held_out[3]
    assert 0 < score.error < 0.1
    assert abs(score.mean - new) < 4 * score.error
    # The training samples score higher than samples that the fit has not seen.
    assert score.mean < choice.results[3].log_likelihood


def test_weights_are_repetitions_for_the_fits() -> None:
    x, repeats = blobs(200, 3, seed=5), torch.arange(200) % 3 + 1
    weighted, repeated = (
        select(y, [3], sample_weight=w, folds=0, generator=torch.Generator().manual_seed(5)).results[3]
        for y, w in ((x, repeats.to(D)), (x.repeat_interleave(repeats, 0), None))
    )
    assert weighted.log_likelihood == pytest.approx(repeated.log_likelihood, abs=1e-6)


def test_samples_without_weight_are_in_no_fold() -> None:
    """Else a fold may have none that counts, and too few may be left to fit."""
    x, weights = blobs(60, 2), torch.zeros(60, dtype=D)
    weights[:8] = 1
    with_others, alone = (
        select(y, [1, 2], sample_weight=w, generator=torch.Generator().manual_seed(9)).held_out
        for y, w in ((x, weights), (x[:8], None))
    )
    assert with_others.keys() == alone.keys()
    assert all(np.isfinite([score.mean, score.error]).all() for score in with_others.values())
    with pytest.raises(ValueError, match="at least 2 and leave 5 samples to fit; got 2 for 8 samples"):
        select(x, [5], sample_weight=weights, folds=2)


def test_same_seed_same_choice_and_progress_is_shown() -> None:
    steps: list[Step] = []
    x = blobs(150, 2)
    a = select(x, [1, 2], generator=torch.Generator().manual_seed(6), progress=steps.append)
    b = select(x, [1, 2], generator=torch.Generator().manual_seed(6))
    assert a.bic == b.bic
    assert a.held_out == b.held_out
    assert repr(a) == f"Selection(n_components=[1, 2], by_bic={a.by_bic}, by_held_out={a.by_held_out})"
    assert {step.name for step in steps} >= {"merging", "choosing", "polishing"}
    assert any(step.name.startswith("held out, ") for step in steps)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"n_components": []}, r"n_components must be one or more numbers, .* got \[\]"),
        ({"n_components": 5}, r"n_components must be one or more numbers, such as range\(1, 11\); got 5"),
        ({"n_components": [0, 1]}, "n_components must be an integer >= 1; got 0"),
        ({"n_components": [2, 30]}, "n_components must be at most the number of samples with a weight, 20; got 30"),
        ({"n_components": [2], "folds": 1}, "folds must be None, 0, or at least 2"),
        (
            {"n_components": [15], "folds": 2},
            "folds must be None, 0, or at least 2 and leave 15 samples to fit; got 2 for 20",
        ),
        ({"n_components": [2], "folds": 21}, "leave 2 samples to fit; got 21 for 20"),
        ({"n_components": [2], "shrinkage": -1}, 'shrinkage must be "auto" or a number >= 0; got -1'),
        ({"n_components": [2], "covariance_type": "round"}, "covariance_type must be one of"),
    ],
)
def test_bad_input(arguments: dict, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        select(blobs(20, 2), **arguments)


def test_a_mixture_has_no_held_out_samples() -> None:
    result = fit(blobs(100, 2), 4, generator=torch.Generator().manual_seed(7))
    with pytest.raises(ValueError, match="X must be samples; got a mixture"):
        select(result.mixture, [2])
    with pytest.raises(ValueError, match="Information criteria need samples"):
        _ = fit(result.mixture, 2, generator=torch.Generator().manual_seed(8)).bic


def test_the_default_numbers_are_one_to_ten() -> None:
    assert list(select(blobs(60, 2), folds=0, generator=torch.Generator().manual_seed(10)).results) == list(
        range(1, 11)
    )


def test_samples_without_axis_give_univariate_mixtures() -> None:
    x = blobs(90, 3, 1).squeeze(-1)
    choice = select(x.numpy(), [2, 3], folds=0, generator=torch.Generator().manual_seed(11))
    assert all(isinstance(result.mixture, NormalMixture) for result in choice.results.values())
    twin = select(x.unsqueeze(-1), [2, 3], folds=0, generator=torch.Generator().manual_seed(11))
    assert choice.bic == twin.bic


def repeated_values(n: int = 600) -> np.ndarray:
    """A column of sizes, and one that is rounded to six values, on each of which a component can collapse."""
    random = np.random.default_rng(0)
    return np.stack((random.gamma(3, 1, n), random.integers(54, 60, n)), 1)


def test_collapsed_fits_are_shown_and_not_chosen() -> None:
    with pytest.warns(ConvergenceWarning) as caught:
        choice = select(repeated_values(), range(1, 8), generator=torch.Generator().manual_seed(12))
    assert 7 in choice.collapsed  # the likelihood of six lines has no upper bound, and a seventh component is left
    assert choice.collapsed == {k: result.collapsed for k, result in choice.results.items() if result.collapsed}
    sound = set(choice.results) - set(choice.collapsed)
    assert choice.by_bic == min(sound, key=choice.bic.__getitem__)
    assert choice.by_held_out == max(sound, key=lambda k: choice.held_out[k].mean)
    # By the criteria alone they would have been chosen.
    assert min(choice.bic, key=choice.bic.__getitem__) in choice.passed_over
    assert max(choice.held_out, key=lambda k: choice.held_out[k].mean) in choice.passed_over
    assert f"collapsed={list(choice.collapsed)}" in repr(choice)
    assert all("have collapsed" in choice.warnings[k][0] for k in choice.collapsed)
    texts = [str(warning.message) for warning in caught]
    numbers = ", ".join(map(str, choice.passed_over))
    assert [text.startswith(f"n_components={numbers}: not chosen in spite of a better") for text in texts] == [True]


def test_if_all_fits_have_collapsed_the_best_is_chosen_with_its_warnings() -> None:
    """Three points on a line, in float32 not even a covariance."""
    x = torch.arange(3, dtype=D).repeat_interleave(60).unsqueeze(-1).expand(-1, 2)
    with pytest.warns(ConvergenceWarning, match="n_components=3: 3 of 3 components have collapsed"):
        choice = select(x, [2, 3], generator=torch.Generator().manual_seed(0))
    assert choice.collapsed == {2: 2, 3: 3}
    assert choice.by_bic == choice.by_held_out == 3
    assert choice.passed_over == []
    assert "3 of 3 components have collapsed" in repr(choice)


def test_outliers_are_a_matter_of_the_data() -> None:
    x = blobs(100, 2)
    x[7] = 1e9
    with pytest.warns(ConvergenceWarning) as caught:
        choice = select(x, [1, 2, 3], generator=torch.Generator().manual_seed(13))
    assert [str(warning.message).startswith("1 of 100 samples lies") for warning in caught] == [True]
    assert choice.by_bic == 2
    assert {result.outliers for result in choice.results.values()} == {(7,)}


def few_in_many_dimensions() -> Tensor:
    g = torch.Generator().manual_seed(14)
    return torch.cat([3 * i + torch.randn(40, 12, generator=g, dtype=D) for i in range(3)])


def test_few_samples_are_shrunk_by_held_out_scores() -> None:
    """The clusters are alike: their covariances are better shared, and with shrinkage three are found."""
    x = few_in_many_dimensions()
    choice, plain = (
        select(x, range(1, 5), shrinkage=shrinkage, generator=torch.Generator().manual_seed(15))
        for shrinkage in ("auto", 0)
    )
    assert choice.by_bic == choice.by_held_out == 3
    assert plain.by_bic == 1  # with full covariances each cluster costs 91 parameters
    assert choice.results[1].shrinkage == 0
    assert all(choice.results[k].shrinkage > 1 for k in (2, 3, 4))
    assert all(result.shrinkage == 0 for result in plain.results.values())
    assert choice.held_out[3].mean > plain.held_out[3].mean + 1
    labels = choice.results[3].mixture.responsibilities(x).argmax(-1)
    assert adjusted_rand_score(torch.arange(3).repeat_interleave(40), labels) > 0.95
    without_scores = select(x, [3], folds=0, generator=torch.Generator().manual_seed(15))
    assert without_scores.results[3].shrinkage > 1


@pytest.mark.parametrize(
    ("covariance_type", "limits"),
    # With k = 3 and d = 4: weights and means, and covariances of their own or what they are shrunk to.
    [("full", (44, 24)), ("tied", (24, 18)), ("diag", (26, 18)), ("spherical", (17, 15))],
)
def test_shrunk_covariances_count_in_part(covariance_type: str, limits: tuple[int, int]) -> None:
    x = few_in_many_dimensions()[:, :4]
    numbers = [
        fit(
            x, 3, covariance_type=covariance_type, shrinkage=shrinkage, generator=torch.Generator().manual_seed(21)
        ).n_parameters
        for shrinkage in (0, 1e-9, 2, 20, 1e9, float("inf"))
    ]
    assert numbers[0] == limits[0]
    assert numbers[1] == pytest.approx(limits[0])
    assert numbers[0] > numbers[2] > numbers[3] > numbers[4]
    assert numbers[4] == pytest.approx(limits[1])
    assert numbers[5] == limits[1]


def test_a_given_shrinkage_is_that_of_all_fits() -> None:
    x = few_in_many_dimensions()
    choice = select(x, [1, 2, 3], shrinkage=float("inf"), generator=torch.Generator().manual_seed(16))
    for k, result in choice.results.items():
        assert result.shrinkage == float("inf")
        covariances = result.mixture.covariances
        assert torch.allclose(covariances, covariances[:1].expand(k, -1, -1))


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical"])
@pytest.mark.parametrize("parts", [None, 5])
def test_scores_are_those_of_samples_that_the_fits_have_not_seen(covariance_type: str, parts: int | None) -> None:
    """Recomputed with scikit-learn; weights are repetitions."""
    x, weights = few_in_many_dimensions()[:, :5], torch.arange(120, dtype=D) % 3
    options = Options(covariance_type, weights, shrinkage=2.0, generator=torch.Generator().manual_seed(17))
    problem = prepare(x, 3, MergeDown(), options)
    data, folds = problem.data, Folds.of(problem, problem.data, parts)
    assert bool(((folds.aside > 0).sum(0) == (weights > 0)).all())  # each sample with a weight once
    found = merged(problem, folds.fitted, None, folds.batch)
    choice, scored = compare(problem, folds, folds.clusters(problem), found, [2.0])
    score = scored.score
    assert choice is not None
    each = len(choice.sums) // len(folds.aside)
    prior = data.family.shrinkage(torch.tensor([2.0], dtype=D), folds.n_samples)

    densities, counts = [], []
    for part, aside in enumerate(folds.aside):
        rows = aside > 0
        models = []
        for sums in choice.sums.split(each)[part]:
            w, means, values = data.family.parameters(sums.unsqueeze(0), prior)
            kind = data.family.kind(values[0])
            models.append(MultivariateNormalMixture(w[0], means[0], kind, validate_args=False).to_sklearn())
        inside = (weights > 0) & ~rows
        own = [np.average(m.score_samples(data.x[inside].numpy()), weights=weights[inside]) for m in models]
        densities += models[int(np.argmax(own))].score_samples(data.x[rows].numpy()).tolist()
        counts += weights[rows].int().tolist()
    repeated = np.repeat(densities, counts)
    assert score.mean == pytest.approx(repeated.mean(), abs=1e-9)
    assert score.error == pytest.approx(repeated.std(ddof=1) / np.sqrt(len(repeated)), rel=1e-6)


def test_large_data_are_scored_on_a_quarter_which_no_fit_has_seen() -> None:
    x = blobs(3000, 3).float()
    problem = prepare(x, 3, MergeDown())

    def fitted(rows: Tensor) -> tuple[Folds, Tensor, Tensor, Tensor, float]:
        part = replace(problem, generator=torch.Generator().manual_seed(20))
        folds = Folds.of(part, Data(problem.family, rows, problem.data.weights))
        clusters, found = folds.clusters(part), merged(part, folds.fitted, None, folds.batch)
        choice, scored = compare(part, folds, clusters, found, [0.0])
        assert choice is not None
        return folds, clusters, found, choice.sums, scored.score.mean

    folds, *fits, score = fitted(problem.data.x)
    assert [int(part.count_nonzero()) for part in folds.aside] == [750]
    assert (folds.n_samples, folds.n_aside, folds.least) == (2250, pytest.approx(750), 2250)
    _, *others, other_score = fitted(problem.data.x + (folds.aside[0] > 0).unsqueeze(-1))
    for a, b in zip(fits, others, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    assert other_score < score - 1


@pytest.mark.parametrize(("n", "scored"), [(1, []), (2, [1]), (3, [1, 2]), (5, [1, 2, 3]), (12, [1, 2, 3, 5])])
def test_a_few_samples_are_enough(n: int, scored: list[int]) -> None:
    x = torch.randn(n, 1, dtype=D, generator=torch.Generator().manual_seed(18))
    wanted = [k for k in (1, 2, 3, 5) if k <= n]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        choice = select(x, wanted, generator=torch.Generator().manual_seed(19))
    assert list(choice.results) == wanted
    assert list(choice.held_out) == scored
    assert all(np.isfinite(score).all() for score in choice.held_out.values())
