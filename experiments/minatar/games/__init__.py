"""The games of MinAtar (Young and Tian, 2019) in batched torch; tests compare them with the package step by step."""

from experiments.minatar.games.asterix import Asterix
from experiments.minatar.games.breakout import Breakout
from experiments.minatar.games.freeway import Freeway
from experiments.minatar.games.game import Game
from experiments.minatar.games.seaquest import Seaquest
from experiments.minatar.games.space_invaders import SpaceInvaders

GAMES: dict[str, type[Game]] = {
    "asterix": Asterix,
    "breakout": Breakout,
    "freeway": Freeway,
    "seaquest": Seaquest,
    "space_invaders": SpaceInvaders,
}

__all__ = ["GAMES", "Game"]
