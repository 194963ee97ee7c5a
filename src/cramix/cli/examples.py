"""Examples in the help of each command; the tests run them."""

from __future__ import annotations

EXAMPLES = {
    "demo": (
        "cramix demo",
        "cramix demo --out demo.png",
    ),
    "fit": (
        "cramix fit people.csv",
        "cramix fit people.csv -k 3 --out model.safetensors --plot fit.png",
        "cramix fit 'data/*.parquet' -k 2-6 --skip-bad --checkpoint fit.ckpt",
    ),
    "predict": (
        "cramix predict model.safetensors others.csv --out labels.csv",
        "cramix predict model.safetensors data/ --out labels.parquet --outliers 0.001",
    ),
    "compare": (
        "cramix compare model.safetensors others.csv",
        "cramix compare model.safetensors small.safetensors --json",
        "cramix compare january/ february/",
    ),
    "compress": (
        "cramix compress model.safetensors -k 2 --out small.safetensors",
        "cramix compress model.safetensors -k 1 --out single.safetensors --json",
    ),
    "sample": (
        "cramix sample model.safetensors -n 5",
        "cramix sample model.safetensors -n 1000 --seed 1 --out drawn.parquet",
    ),
    "train": (
        "cramix train LunarLander-v3 --out lander",
        "cramix train CartPole-v1 --out run --steps 50000 --seed 1",
        "cramix train CartPole-v1 --out careful --risk cvar:0.25 --set gamma=0.98",
    ),
    "play": (
        "cramix play LunarLander-v3 --out landing.gif",
        "cramix play run --episodes 100 --no-film --calibration",
        "cramix play run --risk cvar:0.1 --no-film --json",
    ),
}


def epilog(command: str) -> str:
    """Return the examples of a command, a paragraph each, which typer prints on a line of its own."""
    return "\n\n".join(("Examples:", *EXAMPLES[command]))
