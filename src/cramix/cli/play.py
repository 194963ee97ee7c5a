"""`cramix play`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import torch
import typer

from cramix.atomic import replacing
from cramix.cli import agents
from cramix.cli.options import Json, Risk, Seed
from cramix.cli.refusal import Refusal, check_output, refusing
from cramix.cli.report import Fact, facts_of_returns, show, working
from cramix.plot import episode_panels, film, require_matplotlib, video, write_video

_PICTURES = (".png", ".pdf", ".svg")


def play(
    agent: Annotated[
        str, typer.Argument(metavar="AGENT", help="The folder of a run, or a pretrained agent, as LunarLander-v3.")
    ],
    episodes: Annotated[int, typer.Option("--episodes", min=1, help="How many to play.")] = 10,
    seed: Seed = 0,
    risk: Risk = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="A film of the first episode, gif or mp4; ENV.gif if left out."),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("--picture", metavar="FILE", help="Moments of it side by side: png, pdf, svg.")
    ] = None,
    no_film: Annotated[bool, typer.Option("--no-film", help="Play unseen, without a film.")] = False,
    json: Json = False,
) -> None:
    """Let an agent play: a table of its returns, and a film with what it expects of every action."""
    if no_film and out is not None:
        raise Refusal("--out is for the film, and --no-film wants none. Leave one of them out.")
    if out is not None:
        _check_film(out)
    if picture is not None:
        check_output(picture, _PICTURES)
    from cramix.rl import parse_risk
    from cramix.rl.runs import episode as episodes_of
    from cramix.rl.runs import evaluation
    from cramix.rl.runs.folder import as_name

    torch.set_num_threads(1)  # small networks are fastest so
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if risk is not None:
        with refusing():
            parse_risk(risk)
    model, env, steps = agents.read(agent)
    if out is None and not no_film:
        out = Path(f"{as_name(env)}.gif")
        _check_film(out)
    scene = None
    if out is not None or picture is not None:
        require_matplotlib()
        try:
            with agents.in_environments(env):
                scene = episodes_of.make_visible(env)
        except ValueError as error:
            raise Refusal(f"{error} Use: --no-film") from None
    seen = None
    with working(f"Playing {env}") as say, agents.in_environments(env), refusing():
        returns = evaluation.evaluate(model, env, episodes, seed=seed, risk=risk)
        if scene is not None:
            say("drawing the first episode")
            seen = episodes_of.play(model, scene, seed=seed, risk=risk)
            level = _level(risk or model.settings.risk)
            if out is not None:
                write_video(out, film(seen.moments, seen.names, level=level), seen.rate)
            if picture is not None:
                figure = episode_panels(seen.moments, seen.names, level=level)
                with replacing(picture) as file:
                    figure.savefig(file, format=picture.suffix[1:].lower(), dpi=150)
    words = None if seen is None else f"{out} (return {seen.score:.2f}, {seen.moments[-1].step} steps)"
    facts = [
        Fact("agent", "agent", agent),
        Fact("env", "environment", env),
        Fact("algorithm", "algorithm", type(model).__name__),
        Fact("steps", "trained for", steps, f"{steps} steps"),
        Fact("risk", "acts by", risk or str(model.settings.risk)),
        Fact("seed", "seed", seed),
        Fact("episodes", "episodes", episodes),
        *facts_of_returns(returns.tolist()),
        Fact("film", "film", out, words),
        Fact("picture", "picture", picture),
    ]
    show(facts, as_json=json)


def _check_film(path: Path) -> None:
    check_output(path, video.SUFFIXES)
    video.require_video(path)


def _level(risk: object) -> float:
    """Return the level of the CVaR to mark: that which the agent acts by, or one in ten."""
    return float(risk.partition(":")[2]) if isinstance(risk, str) and risk.startswith("cvar:") else 0.1
