"""scikit-learn's own checks of the regressor of boosted trees, without exceptions."""

from __future__ import annotations

from collections.abc import Callable

from sklearn.utils.estimator_checks import parametrize_with_checks

from cramix import MixtureBoostingRegressor

SMALL = {"n_estimators": 2, "n_components": 2, "max_iter": 20, "n_jobs": 1}
MODELS = [MixtureBoostingRegressor(**SMALL), MixtureBoostingRegressor(**SMALL, early_stopping=False, random_state=0)]


@parametrize_with_checks(MODELS)
def test_a_check_of_scikit_learn(estimator: MixtureBoostingRegressor, check: Callable) -> None:
    check(estimator)
