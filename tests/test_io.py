"""Mixtures in files."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch

import cramix
from cramix import Diagonal, Factor, Full, MultivariateNormalMixture, NormalMixture, Spherical, Tied
from tests import oracle

D = torch.float64


def multivariate(kind: type) -> MultivariateNormalMixture:
    g = torch.Generator().manual_seed(1)
    root = torch.randn(2, 3, 2, 2, generator=g, dtype=D)
    values = {
        Full: root.mT @ root,
        Tied: (root.mT @ root)[:, 0],
        Diagonal: root[..., 0].square(),
        Spherical: root[..., 0, 0].square(),
        Factor: root,
    }
    means = torch.randn(2, 3, 2, generator=g, dtype=D)
    return MultivariateNormalMixture(torch.full((2, 3), 1 / 3, dtype=D), means, kind(values[kind]))


@pytest.mark.parametrize("kind", [Full, Tied, Diagonal, Spherical, Factor])
def test_multivariate_mixtures_come_back_bit_by_bit(kind: type, tmp_path: Path) -> None:
    p = multivariate(kind)
    cramix.save(p, tmp_path / "p.safetensors")
    q = cramix.load(tmp_path / "p.safetensors")
    assert isinstance(q, MultivariateNormalMixture)
    assert type(q.covariance_kind) is kind
    assert torch.equal(q.weights, p.weights)
    assert torch.equal(q.means, p.means)
    assert torch.equal(q.covariance_kind.values, p.covariance_kind.values)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_univariate_mixtures_come_back_bit_by_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    p = oracle.random_mixture(4, 3, seed=0, dtype=dtype)
    cramix.save(p, tmp_path / "p")
    q = cramix.load(str(tmp_path / "p"))
    assert isinstance(q, NormalMixture)
    for name in ("weights", "means", "scales"):
        assert torch.equal(getattr(q, name), getattr(p, name))


def test_points_come_back_as_points(tmp_path: Path) -> None:
    line, plane = NormalMixture.from_samples(torch.randn(5)), MultivariateNormalMixture.from_samples(torch.randn(5, 2))
    for p in (line, plane):
        cramix.save(p, tmp_path / "p")
        q = cramix.load(tmp_path / "p")
        assert torch.equal(q.means, p.means)
        assert q.is_empirical


def test_expanded_and_learned_mixtures_can_be_saved(tmp_path: Path) -> None:
    means = torch.zeros(1, requires_grad=True)
    p = NormalMixture(torch.ones(1), means, torch.ones(1)).expand((3,))
    cramix.save(p, tmp_path / "p")
    assert cramix.load(tmp_path / "p").batch_shape == (3,)


@pytest.mark.parametrize("length", [0, 5, 40, -1])
def test_a_truncated_file_is_refused(length: int, tmp_path: Path) -> None:
    path = tmp_path / "p"
    cramix.save(multivariate(Full), path)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ValueError, match="whole safetensors file"):
        cramix.load(path)


def test_a_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple:
            return os.mkdir, (str(tmp_path / "boom"),)

    (tmp_path / "p").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match="safetensors"):
        cramix.load(tmp_path / "p")
    assert not (tmp_path / "boom").exists()


def test_another_safetensors_file_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"weights": torch.ones(1)}, tmp_path / "p")
    with pytest.raises(ValueError, match="mixture of format 2; got none"):
        cramix.load(tmp_path / "p")
    save_file({"weights": torch.ones(1)}, tmp_path / "p", {"cramix": "2", "mixture": "NormalMixture"})
    with pytest.raises(ValueError, match="weights, means and scales; got weights"):
        cramix.load(tmp_path / "p")


def test_numbers_in_a_file_are_checked(tmp_path: Path) -> None:
    p = NormalMixture(torch.tensor([0.5, 0.9]), torch.zeros(2), torch.ones(2), validate_args=False)
    cramix.save(p, tmp_path / "p")
    with pytest.raises(ValueError, match="weights must sum to 1"):
        cramix.load(tmp_path / "p")


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p"
    cramix.save(multivariate(Full), path)
    before = path.read_bytes()

    def full_disk(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        cramix.save(multivariate(Diagonal), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_saved_file_is_readable_as_others_are(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("")
    cramix.save(multivariate(Full), tmp_path / "p")
    assert (tmp_path / "p").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_only_mixtures_are_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be a mixture of cramix; got list"):
        cramix.save([1], tmp_path / "p")  # type: ignore[arg-type]


def test_names_of_coordinates_come_back(tmp_path: Path) -> None:
    p = multivariate(Full)
    cramix.save(p, tmp_path / "p", names=["größe", 'a "b", c'])
    assert cramix.io.names(tmp_path / "p") == ("größe", 'a "b", c')
    assert torch.equal(cramix.load(tmp_path / "p").means, p.means)
    cramix.save(p, tmp_path / "p")
    assert cramix.io.names(tmp_path / "p") is None
    cramix.save(oracle.random_mixture(4, seed=0), tmp_path / "line", names=("x",))
    assert cramix.io.names(tmp_path / "line") == ("x",)


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c"], "ab", [1, 2]])
def test_names_must_be_one_a_coordinate(names: list, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="names must be a list of 2 strings"):
        cramix.save(multivariate(Full), tmp_path / "p", names=names)


@pytest.mark.parametrize("text", ["[", '["a"]', '{"a": 1, "b": 2}', "[1, 2]"])
def test_names_in_a_file_are_checked(text: str, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    p = multivariate(Full)
    parts = {"weights": p.weights, "means": p.means, "covariances": p.covariance_kind.values}
    metadata = {"cramix": "2", "mixture": "MultivariateNormalMixture", "covariance_type": "full", "names": text}
    save_file(parts, tmp_path / "p", metadata)
    with pytest.raises(ValueError, match="must hold 2 names"):
        cramix.io.names(tmp_path / "p")


def test_an_error_speaks_of_the_file_and_not_of_a_temporary_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        cramix.save(multivariate(Full), tmp_path / "nowhere" / "p")
    assert caught.value.filename == str(tmp_path / "nowhere" / "p")
