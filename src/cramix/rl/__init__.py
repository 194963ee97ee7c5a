"""Distributional Q-learning for Stable-Baselines3: GMDQN, and the algorithms it is compared with."""

from importlib.util import find_spec

if not (find_spec("gymnasium") and find_spec("stable_baselines3")):
    raise ImportError("cramix.rl needs Stable-Baselines3 and Gymnasium. Use: pip install 'cramix[rl]'")

from cramix.rl.agents.c51 import C51
from cramix.rl.agents.ddqn import DoubleDQN
from cramix.rl.agents.gaussian import GMDQN, JTDQN, NLLDQN
from cramix.rl.agents.implicit import IQN
from cramix.rl.agents.quantiles import CRDQN, FQF, QRDQN
from cramix.rl.algorithm import DistributionalDQN
from cramix.rl.calibration import CalibrationCallback, ReturnCalibration, calibrate, evaluate_calibration
from cramix.rl.masks import MaskedActions
from cramix.rl.risk import parse_risk

# By their names on the command line.
ALGORITHMS: dict[str, type[DistributionalDQN]] = {
    "gmdqn": GMDQN,
    "c51": C51,
    "qrdqn": QRDQN,
    "crdqn": CRDQN,
    "fqf": FQF,
    "iqn": IQN,
    "jt": JTDQN,
    "nll": NLLDQN,
    "ddqn": DoubleDQN,
}

__all__ = [
    "ALGORITHMS",
    "C51",
    "CRDQN",
    "FQF",
    "GMDQN",
    "IQN",
    "JTDQN",
    "NLLDQN",
    "QRDQN",
    "CalibrationCallback",
    "DistributionalDQN",
    "DoubleDQN",
    "MaskedActions",
    "ReturnCalibration",
    "calibrate",
    "evaluate_calibration",
    "parse_risk",
]
