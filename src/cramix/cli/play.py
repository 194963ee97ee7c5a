"""`cramix play`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import torch
import typer

from cramix.cli import agents, formats
from cramix.cli.options import Json, Risk, Seed
from cramix.cli.refusal import Refusal, check_output, refusing
from cramix.cli.report import Fact, facts_of_calibration, facts_of_returns, save_figure, show, working
from cramix.html import landing
from cramix.plot import episode_panels, film, require_matplotlib, return_calibration, video, write_video

if TYPE_CHECKING:
    import gymnasium


def play(
    agent: Annotated[
        str, typer.Argument(metavar="AGENT", help="Folder of a run, or a pretrained agent: LunarLander-v3.")
    ],
    episodes: Annotated[int, typer.Option("--episodes", min=1, help="Number of episodes.")] = 10,
    seed: Seed = 0,
    risk: Risk = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Film of the first episode, gif or mp4. Default: ENV.gif."),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option("--picture", metavar="FILE", help="Moments of that episode side by side: png, pdf, svg."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Page of that episode, .html; a film is then made only with --out."
        ),
    ] = None,
    calibration: Annotated[
        bool, typer.Option("--calibration", help="Compare predicted return distributions with realised returns.")
    ] = False,
    calibration_plot: Annotated[
        Path | None,
        typer.Option("--calibration-plot", metavar="FILE", help="The same, with a picture: png, pdf, svg."),
    ] = None,
    no_film: Annotated[bool, typer.Option("--no-film", help="Play without a film.")] = False,
    json: Json = False,
) -> None:
    """Let an agent play: print its returns, and film an episode with the predicted returns of every action.

    With --html, the episode becomes a page to scrub through instead.
    """
    if no_film and out is not None:
        raise Refusal("--out and --no-film exclude each other. Leave one of them out.")
    if out is not None:
        _check_film(out)
    if picture is not None:
        check_output(picture, formats.PICTURES)
    if html is not None:
        check_output(html, formats.PAGES)
    if calibration_plot is not None:
        check_output(calibration_plot, formats.PICTURES)
    from cramix.rl import evaluate_calibration, evaluation, parse_risk
    from cramix.rl.folder import slug

    torch.set_num_threads(1)  # fastest for small networks
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if risk is not None:
        with refusing():
            parse_risk(risk)
    model, env = agents.read(agent)
    if out is None and html is None and not no_film:
        out = Path(f"{slug(env)}.gif")
        _check_film(out)
    scene = page_scene = None
    if out is not None or picture is not None:
        require_matplotlib()
        scene = _visible(env, "Use: --no-film")
    if html is not None:
        landing.require_pillow()
        page_scene = _visible(env, "Leave out --html.")
    first = None
    with working(f"Playing {env}") as status, agents.environment_errors(env), refusing():
        if calibration or calibration_plot is not None:
            measured = evaluate_calibration(model, env, episodes, seed=seed, risk=risk)
            returns, quality = measured.scores, facts_of_calibration(measured.summary())
            if calibration_plot is not None:
                save_figure(return_calibration(measured), calibration_plot)
        else:
            returns, quality = evaluation.evaluate(model, env, episodes, seed=seed, risk=risk), []
        if scene is not None:
            status("drawing the first episode")
            first = evaluation.play(model, scene, seed=seed, risk=risk)
            level = _level(risk or model.risk)
            if out is not None:
                write_video(out, film(first.moments, first.names, level=level), first.rate)
            if picture is not None:
                save_figure(episode_panels(first.moments, first.names, level=level), picture)
        if html is not None and page_scene is not None:
            status("writing the page")
            about = f"{type(model).__name__}, trained for {model.num_timesteps:,} steps"
            every_step = evaluation.play(model, page_scene, seed=seed, risk=risk, every=1)
            landing.write_episode(html, every_step, title=env, about=about)
    film_text = None if first is None else f"{out} (return {first.score:.2f}, {first.moments[-1].step} steps)"
    facts = [
        Fact("agent", "agent", agent),
        Fact("env", "environment", env),
        Fact("algorithm", "algorithm", type(model).__name__),
        Fact("steps", "trained for", model.num_timesteps, f"{model.num_timesteps} steps"),
        Fact("risk", "risk measure", risk or str(model.risk)),
        Fact("seed", "seed", seed),
        Fact("episodes", "episodes", episodes),
        *facts_of_returns(returns.tolist()),
        *quality,
        Fact("film", "film", out, film_text),
        Fact("picture", "picture", picture),
        Fact("html", "page", html),
        Fact("calibration_plot", "calibration plot", calibration_plot),
    ]
    show(facts, as_json=json)


def _visible(env: str, remedy: str) -> gymnasium.Env:
    """Return an environment with frames; a refusal says what to do without them."""
    from cramix.rl import evaluation

    try:
        with agents.environment_errors(env):
            return evaluation.make_visible(env)
    except ValueError as error:
        raise Refusal(f"{error} {remedy}") from None


def _check_film(path: Path) -> None:
    check_output(path, video.SUFFIXES)
    video.require_video(path)


def _level(risk: object) -> float:
    """Return the level of the CVaR to draw: that of the agent's risk measure, or 0.1."""
    return float(risk.partition(":")[2]) if isinstance(risk, str) and risk.startswith("cvar:") else 0.1
