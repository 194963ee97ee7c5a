"""The libraries that the benchmarks of fits compare: each fit becomes a `Fitted`, and all are scored alike."""

from __future__ import annotations

import functools
import importlib.util
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from harness import time_limit
from problems import Problem
from scipy.linalg import solve_triangular
from scipy.special import logsumexp
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from threadpoolctl import threadpool_limits

import cramix

REG_COVAR = 1e-6  # of all, where columns have unit variance
LONGEST_FIT = 300  # seconds
FAILURES = ValueError, RuntimeError, MemoryError, TimeoutError, np.linalg.LinAlgError


class Fitted(NamedTuple):
    """The parameters of a mixture, covariances `(k, d, d)`; `seconds` if the library itself measures them."""

    weights: np.ndarray
    means: np.ndarray
    covariances: np.ndarray
    seconds: float | None = None

    def score(self, x: np.ndarray) -> float:
        return float(logsumexp(self._log_joint(x), 1).mean())

    def rand_index(self, x: np.ndarray, classes: np.ndarray) -> float:
        return float(adjusted_rand_score(classes, self._log_joint(x).argmax(1)))

    def collapsed(self) -> bool:
        """Whether a component has almost no variance beside `reg_covar` in some direction."""
        return bool(np.linalg.eigvalsh(self.covariances).min() < 10 * REG_COVAR)

    def _log_joint(self, x: np.ndarray) -> np.ndarray:
        if not all(np.isfinite(values).all() for values in self[:3]):
            raise ValueError("parameters are not finite")
        columns = []
        for weight, mean, root in zip(self.weights, self.means, np.linalg.cholesky(self.covariances), strict=True):
            z = solve_triangular(root, (x - mean).T, lower=True)
            log_scale = np.log(np.diag(root)).sum() + 0.5 * len(mean) * np.log(2 * np.pi)
            columns.append(np.log(max(weight, 1e-300)) - log_scale - 0.5 * (z**2).sum(0))
        return np.stack(columns, 1)


Fit = Callable[[np.ndarray, Problem, int], Fitted]


def timed(fit: Fit, x: np.ndarray, problem: Problem, seed: int) -> tuple[Fitted, float]:
    started = time.perf_counter()
    with time_limit(LONGEST_FIT):
        fitted = fit(x, problem, seed)
    return fitted, fitted.seconds or time.perf_counter() - started


def em(n_init: int = 10, **settings: Any) -> Fit:
    return _of_sklearn(GaussianMixture, n_init=n_init, **settings)


def em_with_one_thread() -> Fit:
    """scikit-learn takes all threads; with matrices as small as most here, one is several times as fast."""
    fit = em()

    def run(x: np.ndarray, problem: Problem, seed: int) -> Fitted:
        with threadpool_limits(1):
            return fit(x, problem, seed)

    return run


def bayesian() -> Fit:
    """Priors as scikit-learn sets them; ten starts, as the others."""
    return _of_sklearn(BayesianGaussianMixture, n_init=10, max_iter=1000)


def _of_sklearn(model: type, **settings: Any) -> Fit:
    def run(x: np.ndarray, problem: Problem, seed: int) -> Fitted:
        options = {"covariance_type": problem.covariance_type, "reg_covar": REG_COVAR, "random_state": seed}
        fitted = model(n_components=problem.n_components, **options, **settings).fit(x)
        return Fitted(
            fitted.weights_, fitted.means_, _dense(fitted.covariances_, fitted.means_, problem.covariance_type)
        )

    return run


def ours(**settings: Any) -> Fit:
    def run(x: np.ndarray, problem: Problem, seed: int) -> Fitted:
        mixture = cramix.fit(
            x,
            problem.n_components,
            covariance_type=problem.covariance_type,
            generator=torch.Generator().manual_seed(seed),
            **settings,
        ).mixture
        return Fitted(mixture.weights.numpy(), mixture.means.numpy(), mixture.covariances.numpy())

    return run


def of_tgmm(x: np.ndarray, problem: Problem, seed: int, n_init: int = 10) -> Fitted:
    import tgmm

    kind = {"tied": "tied_full"}.get(problem.covariance_type, problem.covariance_type)
    model = tgmm.GaussianMixture(
        problem.n_components,
        x.shape[1],
        covariance_type=kind,
        reg_covar=REG_COVAR,
        n_init=n_init,
        random_state=seed,
        device="cpu",
    ).fit(torch.from_numpy(x))
    weights, means, covariances = (
        values.detach().double().numpy() for values in (model.weights_, model.means_, model.covariances_)
    )
    return Fitted(weights, means, _dense(covariances, means, problem.covariance_type))


def of_pomegranate(x: np.ndarray, problem: Problem, seed: int) -> Fitted:
    threads = torch.get_num_threads()
    from pomegranate.distributions import Normal
    from pomegranate.gmm import GeneralMixtureModel

    torch.set_num_threads(threads)  # its import changes the number
    model = GeneralMixtureModel(
        [Normal(covariance_type=problem.covariance_type) for _ in range(problem.n_components)],
        tol=1e-3,
        random_state=seed,
    ).fit(torch.from_numpy(x).float())
    means = np.stack([part.means.double().numpy() for part in model.distributions])
    covariances = np.stack([part.covs.double().numpy() for part in model.distributions])
    return Fitted(model.priors.double().numpy(), means, _dense(covariances, means, problem.covariance_type))


def of_mclust(x: np.ndarray, problem: Problem, seed: int) -> Fitted:
    """The conjugate prior of mclust, from its hierarchical start."""
    (_, d), k = x.shape, problem.n_components
    model = {"full": "VVV", "tied": "EEE", "diag": "VVI", "spherical": "VII"}[problem.covariance_type]
    with tempfile.TemporaryDirectory() as folder:
        np.savetxt(Path(folder) / "data.csv", x, delimiter=",")
        r = _r()
        print(folder, k, model if d > 1 else "V", d, seed, sep="\t", file=r.stdin, flush=True)
        try:
            r.stdout.readline()
        except TimeoutError:
            r.kill()
            _r.cache_clear()
            raise
        values = np.loadtxt(Path(folder) / "result.csv", ndmin=1)
    if not len(values):
        raise RuntimeError("mclust found no fit")
    means, covariances = values[1 + k : 1 + k + k * d], values[1 + k + k * d :]
    return Fitted(values[1 : 1 + k], means.reshape(k, d), covariances.reshape(k, d, d), values[0])


@functools.cache
def _r() -> subprocess.Popen[str]:
    """Start R, which takes longer than most fits, once."""
    script = Path(__file__).parent / "mclust.R"
    return subprocess.Popen(["Rscript", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def has_mclust() -> bool:
    ask = ["Rscript", "-e", "library(mclust)"]
    return shutil.which("Rscript") is not None and subprocess.run(ask, capture_output=True).returncode == 0


def _dense(covariances: np.ndarray, means: np.ndarray, covariance_type: str) -> np.ndarray:
    """Return covariances `(k, d, d)` for those of a type, in the shape that scikit-learn gives them."""
    k, d = means.shape
    if covariance_type == "diag":
        return covariances[:, :, None] * np.eye(d)
    if covariance_type == "spherical":
        return covariances[:, None, None] * np.eye(d)
    return np.broadcast_to(covariances, (k, d, d))


EM, EXACT_EM, OURS = "scikit-learn, n_init=10", "scikit-learn, n_init=10, tol=1e-6", "cramix"
EM_ONE_THREAD = "scikit-learn, n_init=10, one thread"


def contestants() -> dict[str, Fit]:
    """Return the contestants that are installed."""
    found: dict[str, Fit] = {
        EM: em(),
        EM_ONE_THREAD: em_with_one_thread(),
        EXACT_EM: em(tol=1e-6, max_iter=1000),
        "scikit-learn, Bayesian": bayesian(),
    }
    if has_mclust():
        found["mclust, prior"] = of_mclust
    else:
        print("mclust is left out: Rscript with the package mclust is not on the path.", flush=True)
    if importlib.util.find_spec("tgmm"):
        found["tgmm, n_init=10"] = of_tgmm
    else:
        print("tgmm is left out: it is not installed.", flush=True)
    found[OURS] = ours()
    return found
