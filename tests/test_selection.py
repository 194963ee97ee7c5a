"""The choice of the number of components: known numbers are found, criteria are those of scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture
from torch import Tensor

from cramix import ConvergenceWarning, NormalMixture, fit, select
from cramix.fitting import Step

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
    # A held-out score may see little harm in one more component, not in one less.
    assert k <= choice.by_held_out <= k + 1
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
    with pytest.raises(ValueError, match="no held-out score: select was called with folds=0"):
        _ = choice.by_held_out


def test_each_fit_is_as_good_as_one_by_itself() -> None:
    """With fewer components than clusters there are many optima, and the path ends near the best."""
    x = blobs(300, 5, seed=3)
    choice = select(x, range(1, 7), folds=0, generator=torch.Generator().manual_seed(2))
    for k, result in choice.results.items():
        alone = fit(x, k, generator=torch.Generator().manual_seed(3))
        assert result.log_likelihood >= alone.log_likelihood - (0.1 if k < 5 else 1e-4)
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
    with pytest.raises(
        ValueError, match="folds must be 0, or at least 2 and leave 5 samples to fit; got 2 for 8 samples"
    ):
        select(x, [5], sample_weight=weights, folds=2)


def test_same_seed_same_choice_and_progress_is_shown() -> None:
    steps: list[Step] = []
    x = blobs(150, 2)
    a = select(x, [1, 2], generator=torch.Generator().manual_seed(6), progress=steps.append)
    b = select(x, [1, 2], generator=torch.Generator().manual_seed(6))
    assert a.bic == b.bic
    assert a.held_out == b.held_out
    assert repr(a) == f"Selection(n_components=[1, 2], by_bic={a.by_bic}, by_held_out={a.by_held_out})"
    assert {step.name for step in steps} == {"merging", "polishing"}


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"n_components": []}, r"n_components must be one or more numbers, .* got \[\]"),
        ({"n_components": 5}, r"n_components must be one or more numbers, such as range\(1, 11\); got 5"),
        ({"n_components": [0, 1]}, "n_components must be an integer >= 1; got 0"),
        ({"n_components": [2, 30]}, "n_components must be at most the number of samples with a weight, 20; got 30"),
        ({"n_components": [2], "folds": 1}, "folds must be 0, or at least 2"),
        (
            {"n_components": [15], "folds": 2},
            "folds must be 0, or at least 2 and leave 15 samples to fit; got 2 for 20",
        ),
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


def test_warnings_of_the_fits_are_shown() -> None:
    """Repeated points, on which components collapse; what the choice suffers from is raised."""
    x = torch.cat([blobs(60, 2), torch.full((30, 2), 40.0, dtype=D)])
    with pytest.warns(ConvergenceWarning, match=r"n_components=\d: 1 of \d components have collapsed"):
        choice = select(x, [1, 3], folds=0, generator=torch.Generator().manual_seed(12))
    assert list(choice.warnings) == [3]
    assert "have collapsed" in repr(choice)
