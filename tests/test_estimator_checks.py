"""scikit-learn's own checks of an estimator, without exceptions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from cramix import CramerMixture

# The checks fit constant columns and more columns than samples, where components collapse and that is said.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

MODELS = [
    CramerMixture(),
    CramerMixture(3, random_state=0),
    CramerMixture(2, covariance_type="tied"),
    CramerMixture(2, covariance_type="diag"),
    CramerMixture(2, covariance_type="spherical"),
    CramerMixture(3, method="em"),
    CramerMixture(2, optimizer="lbfgs", max_iter=20),
    CramerMixture(2, objective="cramer", max_iter=20),
    CramerMixture(2, init_params="k-means++", n_init=2, warm_start=True),
]


@parametrize_with_checks(MODELS)
def test_a_check_of_scikit_learn(estimator: CramerMixture, check: Callable[[CramerMixture], None]) -> None:
    check(estimator)
