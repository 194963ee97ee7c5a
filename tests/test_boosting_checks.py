"""scikit-learn's own checks of boosted trees, and of a mixture of them and networks, without exceptions."""

from __future__ import annotations

from collections.abc import Callable

from sklearn.utils.estimator_checks import parametrize_with_checks

from cramix import MixtureBoostingRegressor, MixtureRegressor, MixtureStackingRegressor

SMALL = {"n_estimators": 3, "n_components": 2, "max_iter": 20, "n_jobs": 1}
MODELS: list = [
    MixtureBoostingRegressor(**SMALL),
    MixtureBoostingRegressor(**SMALL, early_stopping=False, random_state=0),
]
NETWORKS = MixtureRegressor(n_estimators=2, hidden_layer_sizes=(16,), n_components=2, learning_rate=0.02, max_iter=20)
MODELS.append(MixtureStackingRegressor([MixtureBoostingRegressor(**SMALL), NETWORKS]))


@parametrize_with_checks(MODELS)
def test_a_check_of_scikit_learn(estimator: object, check: Callable) -> None:
    check(estimator)
