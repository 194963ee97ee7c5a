"""Programs that end at a moment of our choice."""

import itertools
from pathlib import Path


class Killed(BaseException):
    """Not an Exception, as a signal is not one."""


def kill_at(patch, moment):
    """Let the program end at some moment, counted in changes of files."""
    counter = itertools.count()

    def dying(real):
        def call(self, *args, **also):
            if next(counter) == moment:
                raise Killed
            return real(self, *args, **also)

        return call

    for name in ("replace", "unlink"):
        patch.setattr(Path, name, dying(getattr(Path, name)))
