"""Random crops and colors: formulas against colorsys, one change per window, another one per epoch, none in a cache."""

from __future__ import annotations

import colorsys
import random
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from robot_episodes import CAMERAS, encode, write_episodes

from worldsmith.config import WrongValueError
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.video_sample import VideoSample
from worldsmith.data.latent_cache import LatentCache
from worldsmith.data.robots.augmentation import Augmentation, AugmentationConfig
from worldsmith.data.robots.robot import LiberoRobot
from worldsmith.data.robots.robot_dataset import RobotDataset
from worldsmith.data.robots.robot_loader import RobotLoader

IMAGE = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
DROID = AugmentationConfig(crop=0.95, brightness=0.3, contrast=0.4, saturation=0.5, hue=0.08)


def recolored(name: str, factor: float) -> np.ndarray:
    return Augmentation(1.0, 0, 0, ((name, factor),)).recolored(IMAGE).astype(float)


def gray(image: np.ndarray) -> np.ndarray:
    """ITU-R 601-2, as torchvision."""
    return np.rint(image @ (0.299, 0.587, 0.114))


@pytest.mark.parametrize("factor", [0.0, 0.6, 1.0, 1.5])
def test_brightness_contrast_and_saturation_mix_an_image_with_a_simpler_one(factor: float) -> None:
    pixels = IMAGE.astype(float)
    simpler = {
        "brightness": np.zeros(IMAGE.shape),
        "contrast": np.full(IMAGE.shape, np.rint(gray(pixels).mean())),
        "saturation": np.repeat(gray(pixels)[..., None], 3, axis=2),
    }
    for name, other in simpler.items():
        expected = np.clip(factor * pixels + (1 - factor) * other, 0, 255)
        assert np.abs(recolored(name, factor) - expected).max() <= 1.5, name


@pytest.mark.parametrize("turn", [-0.08, 0.0, 0.05, 0.5])
def test_the_hue_turns_around_the_circle(turn: float) -> None:
    expected = np.empty(IMAGE.shape)
    for place in np.ndindex(IMAGE.shape[:2]):
        hue, saturation, value = colorsys.rgb_to_hsv(*IMAGE[place] / 255)
        expected[place] = [255 * part for part in colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value)]
    assert (
        np.abs(recolored("hue", turn) - expected).max() <= 12
    )  # 256 steps of 1.4° for the hue and 256 for the saturation


def test_a_crop_keeps_its_fraction_inside_the_image() -> None:
    rng, tops = random.Random(0), set[int]()
    image = np.arange(100 * 200).reshape(100, 200, 1).repeat(3, 2)
    for _ in range(200):
        kept = AugmentationConfig(crop=0.9).draw(rng).cropped(image)
        assert kept.shape == (90, 180, 3)
        tops.add(int(kept[0, 0, 0]) // 200)
    assert tops == set(range(11))


def test_nothing_is_drawn_outside_the_ranges() -> None:
    assert not AugmentationConfig().is_active
    rng, orders = random.Random(0), set[tuple[str, ...]]()
    ranges = {"brightness": (0.7, 1.3), "contrast": (0.6, 1.4), "saturation": (0.5, 1.5), "hue": (-0.08, 0.08)}
    for _ in range(500):
        colors = DROID.draw(rng).colors
        orders.add(tuple(name for name, _ in colors))
        assert all(ranges[name][0] <= factor <= ranges[name][1] for name, factor in colors)
    assert len(orders) == 24
    assert [name for name, _ in AugmentationConfig(hue=0.1).draw(rng).colors] == ["hue"]


def load(folder: Path, augmentation: AugmentationConfig, cache: Path | None = None) -> RobotLoader:
    dataset = RobotDataset.Config(path=str(folder), robot=LiberoRobot.Config(), steps=4, resolution="64x32")
    dataset.augmentation = augmentation
    config = RobotLoader.Config(dataset=dataset, max_samples_per_batch=4, latent_cache=str(cache or ""))
    latents = None if cache is None else LatentCache(cache, "vae")
    grid = LatentGrid(frames=4, pixels=16, patch=2)
    found: RobotLoader = config.build(grid=grid, tokenizer=lambda text: [1], latent_cache=latents)
    return found


def test_frames_and_cameras_of_a_window_change_alike_and_each_epoch_differs(tmp_path: Path) -> None:
    """All frames of the episodes have one color, so colors show what was drawn."""
    folder = write_episodes(tmp_path, "v3.0")
    plain = {sample.key: sample for sample in load(folder, AugmentationConfig()).first_samples()}

    def samples() -> list[VideoSample]:
        loader = load(folder, AugmentationConfig(brightness=0.5))
        packs = islice(iter(loader), 2 * len(plain) // 4)
        return [sample for pack in packs for sample in pack]

    found, factors = samples(), dict[str, list[float]]()
    for sample in found:
        before = plain[sample.key].video
        assert before is not None
        assert sample.video is not None
        bright = before.float() > 60
        ratios = (sample.video.float() / before.float().clamp(min=1))[bright & (sample.video < 255)]
        assert ratios.max() - ratios.min() < 0.06, sample.key
        factors.setdefault(sample.key, []).append(ratios.median().item())
    assert all(len(drawn) == 2 and abs(drawn[0] - drawn[1]) > 1e-3 for drawn in factors.values())
    assert all(torch.equal(a.video, b.video) for a, b in zip(found, samples()))


def test_frames_and_cameras_of_a_window_have_the_same_crop(tmp_path: Path) -> None:
    """Red grows to the right and green downwards, so the mean color of a crop shows its place; a crop is relative to
    the size of its camera."""
    sides = dict(zip(CAMERAS, (32, 64)))
    folder = write_episodes(tmp_path, "v3.0", cameras={camera: (side, side) for camera, side in sides.items()})
    for camera, side in sides.items():
        ramp, image = 240 * (np.arange(side) + 0.5) / side, np.full((side, side, 3), 90, np.uint8)
        image[..., 0], image[..., 1] = ramp, ramp[:, None]
        for path, count in zip(sorted((folder / "videos" / camera).rglob("*.mp4")), (21, 15), strict=True):
            encode(path, [image] * count)
    places = []
    for sample in load(folder, AugmentationConfig(crop=0.5)).first_samples():
        assert sample.video is not None
        halves = torch.stack(sample.video.float().split(32, dim=3))  # [camera, color, frame, row, column]
        colors = halves.mean(dim=(3, 4))[:, :2]
        assert (colors - colors[:, :, :1]).abs().max() < 1, sample.key  # one pixel of the crop is a change of 3.75
        assert (colors[0] - colors[1]).abs().max() < 5, sample.key
        spread = halves[:, 0, :, :, -4:].mean(dim=(2, 3)) - halves[:, 0, :, :, :4].mean(dim=(2, 3))
        assert ((spread > 90) & (spread < 120)).all(), sample.key  # half of the image, in its full width
        places.append(colors[0, :, 0])
    red, green = torch.stack(places).T
    assert min(red.std(), green.std()) > 20
    assert abs(float(torch.corrcoef(torch.stack((red, green)))[0, 1])) < 0.7


def test_a_cache_of_latents_is_refused(tmp_path: Path) -> None:
    folder = write_episodes(tmp_path / "data", "v3.0")
    with pytest.raises(WrongValueError, match="each epoch has other images"):
        load(folder, DROID, tmp_path / "cache")
    load(folder, AugmentationConfig(), tmp_path / "cache")
