"""Regressors that predict distributions, each with the settings its authors recommend, and early stopping where it has
it. A method takes training rows, rows to predict and a seed, and returns a mixture for each row.

NGBoost and XGBoostLSS 0.6 ask for older versions of pandas and torch than cramix is tested with. They were installed
without their dependencies, `pip install --no-deps`, into an environment that sees those of cramix. XGBoostLSS takes the
place of LightGBMLSS, its twin, whose normals stopped after a few rounds with LightGBM 4.7. PGBM 2.3 is not among them:
its scikit-learn module does not import with NumPy 2, and its torch module fails with scikit-learn 1.9.

Quantile regressors return their quantiles as a sample of equally likely values: it has a CRPS, but no density.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from sklearn.model_selection import train_test_split

from cramix import MixtureBoostingRegressor, MixtureRegressor, MixtureStackingRegressor, NormalMixture

D = torch.float64
Predict = Callable[[np.ndarray, np.ndarray, np.ndarray, int], NormalMixture]
# Gaussian processes are fitted to at most this many rows: their time is cubic in them.
PROCESS_ROWS = 2000
# NGBoost is fitted a second time, to all rows, if there are fewer than this.
REFITTED_ROWS = 5000
LEVELS = (np.arange(50) + 0.5) / 50


class _Timed:
    """A regressor that notes the CPU time of its fit."""

    def fit(self, *rows: object) -> object:
        started = time.process_time()
        super().fit(*rows)  # type: ignore[misc]
        self.seconds_ = time.process_time() - started
        return self


class _Trees(_Timed, MixtureBoostingRegressor):
    pass


class _Networks(_Timed, MixtureRegressor):
    pass


def cramix(X: np.ndarray, y: np.ndarray, held: np.ndarray, seed: int) -> dict[str, tuple[NormalMixture, float]]:
    """`MixtureStackingRegressor` at its defaults; its trees and its networks alone, which it fits to all rows."""
    started = time.process_time()
    both = MixtureStackingRegressor([_Trees(n_jobs=1), _Networks()], random_state=seed).fit(X, y)
    found = {"cramix trees and networks": (both.predict_dist(held), time.process_time() - started)}
    for name, model in zip(("cramix trees", "cramix networks"), both.estimators_, strict=True):
        started = time.process_time()
        p = model.predict_dist(held)
        found[name] = (p, model.seconds_ + time.process_time() - started)
    return found


def ngboost(X: np.ndarray, y: np.ndarray, held: np.ndarray, seed: int) -> NormalMixture:
    """As in the paper: at most 2000 rounds of rate 0.01, as many as do best on a fifth of the rows, then on all rows.

    From 5,000 rows on the model of the other four fifths is kept.
    """
    from ngboost import NGBRegressor

    seen_X, unseen_X, seen_y, unseen_y = train_test_split(X, y, test_size=0.2, random_state=seed)
    model = NGBRegressor(n_estimators=2000, verbose=False, random_state=seed)
    model.fit(seen_X, seen_y, X_val=unseen_X, Y_val=unseen_y, early_stopping_rounds=50)
    rounds = model.best_val_loss_itr
    if len(X) < REFITTED_ROWS:
        model = NGBRegressor(n_estimators=max(rounds, 1), verbose=False, random_state=seed).fit(X, y)
    found = model.pred_dist(held, max_iter=rounds)
    return _normal(found.loc, found.scale)


def catboost(X: np.ndarray, y: np.ndarray, held: np.ndarray, seed: int) -> NormalMixture:
    """Mean and variance by `RMSEWithUncertainty`, early stopping on a fifth of the rows."""
    from catboost import CatBoostRegressor

    seen_X, unseen_X, seen_y, unseen_y = train_test_split(X, y, test_size=0.2, random_state=seed)
    model = CatBoostRegressor(
        loss_function="RMSEWithUncertainty", iterations=2000, verbose=False, random_seed=seed, thread_count=1,
        allow_writing_files=False,
    )  # fmt: skip
    model.fit(seen_X, seen_y, eval_set=(unseen_X, unseen_y), early_stopping_rounds=50)
    found = model.predict(held)
    return _normal(found[:, 0], np.sqrt(found[:, 1]))


def xgboostlss(n_components: int) -> Predict:
    """Normals, or mixtures of them, by likelihood: at most 2000 rounds of rate 0.02, as many as do best on a fifth."""

    def predict(X: np.ndarray, y: np.ndarray, held: np.ndarray, seed: int) -> NormalMixture:
        import xgboost
        from xgboostlss.distributions.Gaussian import Gaussian
        from xgboostlss.distributions.Mixture import Mixture
        from xgboostlss.model import XGBoostLSS

        torch.manual_seed(seed)
        center, scale = y.mean(), y.std()
        parts = train_test_split(X, (y - center) / scale, test_size=0.2, random_state=seed)
        seen, unseen = (xgboost.DMatrix(parts[i], label=parts[i + 2], nthread=1) for i in (0, 1))
        normal = Gaussian(stabilization="None", response_fn="exp" if n_components == 1 else "softplus", loss_fn="nll")
        model = XGBoostLSS(normal if n_components == 1 else Mixture(normal, M=n_components))
        model.train(
            {"eta": 0.02, "max_depth": 3, "subsample": 0.8, "nthread": 1, "verbosity": 0, "seed": seed}, seen, 2000,
            evals=[(seen, "seen"), (unseen, "unseen")], early_stopping_rounds=50, verbose_eval=False,
        )  # fmt: skip
        model.booster = model.booster[: model.booster.best_iteration + 1]
        found = model.predict(xgboost.DMatrix(held, nthread=1), pred_type="parameters").to_numpy(dtype=float)
        if n_components == 1:
            return _normal(center + scale * found[:, 0], scale * found[:, 1])
        means, scales, weights = torch.as_tensor(found).split(n_components, 1)
        return NormalMixture(weights / weights.sum(1, keepdim=True), center + scale * means, scale * scales)

    return predict


def forest(X: np.ndarray, y: np.ndarray, held: np.ndarray, seed: int) -> NormalMixture:
    from quantile_forest import RandomForestQuantileRegressor

    model = RandomForestQuantileRegressor(n_estimators=500, min_samples_leaf=5, random_state=seed).fit(X, y)
    return _sample(model.predict(held, quantiles=LEVELS.tolist()))


def quantiles(X: np.ndarray, y: np.ndarray, held: np.ndarray, seed: int) -> NormalMixture:
    """LightGBM's own quantile objective, a model for each of 19 levels, early stopping on a fifth of the rows."""
    import lightgbm

    seen_X, unseen_X, seen_y, unseen_y = train_test_split(X, y, test_size=0.2, random_state=seed)
    columns = []
    for level in np.arange(1, 20) / 20:
        model = lightgbm.LGBMRegressor(
            objective="quantile", alpha=level, n_estimators=1000, learning_rate=0.05, n_jobs=1, verbose=-1,
            random_state=seed,
        )  # fmt: skip
        model.fit(
            seen_X, seen_y, eval_set=[(unseen_X, unseen_y)], callbacks=[lightgbm.early_stopping(50, verbose=False)]
        )
        columns.append(model.predict(held))
    return _sample(np.sort(np.stack(columns, 1), 1))


def process(X: np.ndarray, y: np.ndarray, held: np.ndarray, seed: int) -> NormalMixture:
    """Learn a length scale per feature and the noise; of larger tables a sample of the rows."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
    from sklearn.preprocessing import StandardScaler

    rows = np.random.default_rng(seed).permutation(len(X))[:PROCESS_ROWS]
    X, y = X[rows], y[rows]
    units = StandardScaler().fit(X)
    kernel = ConstantKernel() * RBF(np.ones(X.shape[1])) + WhiteKernel(0.1)
    model = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed).fit(units.transform(X), y)
    return _normal(*model.predict(units.transform(held), return_std=True))


def _normal(means: np.ndarray, scales: np.ndarray) -> NormalMixture:
    m, s = (torch.as_tensor(np.array(x), dtype=D).unsqueeze(-1) for x in (means, scales))
    return NormalMixture(torch.ones_like(m), m, s)


def _sample(values: np.ndarray) -> NormalMixture:
    return NormalMixture.from_samples(torch.as_tensor(values, dtype=D))


METHODS: dict[str, Callable] = {
    "cramix": cramix,
    "NGBoost": ngboost,
    "CatBoost": catboost,
    "XGBoostLSS, normal": xgboostlss(1),
    "XGBoostLSS, mixture": xgboostlss(3),
    "quantile forest": forest,
    "LightGBM, quantiles": quantiles,
    "Gaussian process": process,
}
