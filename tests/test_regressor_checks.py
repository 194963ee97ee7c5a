"""scikit-learn's own checks of regressors."""

from __future__ import annotations

from collections.abc import Callable

from sklearn.utils.estimator_checks import parametrize_with_checks

from cramix import ConformalRegressor, MixtureRegressor

SMALL = {"n_estimators": 2, "hidden_layer_sizes": (16,), "n_components": 2, "learning_rate": 0.02, "max_iter": 25}
MODELS = [
    MixtureRegressor(**SMALL),
    MixtureRegressor(**SMALL, loss="nll", early_stopping=False, random_state=0),
    ConformalRegressor(MixtureRegressor(**SMALL), random_state=0),
]


@parametrize_with_checks(MODELS)
def test_a_check_of_scikit_learn(estimator: MixtureRegressor, check: Callable[[MixtureRegressor], None]) -> None:
    check(estimator)
