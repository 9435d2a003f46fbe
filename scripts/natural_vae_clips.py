"""Procedural clips with the statistics of natural video: dead leaves under a moving camera, nothing recorded.

`Scenes` renders a pool of still scenes once: opaque leaves whose sizes follow a power law, shaded and textured, with
colours that vary mostly in brightness. `training_clip` films one of them: the camera pans, zooms, turns and shakes or
stands still, other leaves move in front, the light changes, the picture is more or less sharp and noisy.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

SCENE_SIDE = 448
TEXTURE_SIDE = 512
# Columns: brightness and two opponent colours; orthonormal, so that errors weigh the same as in RGB.
OPPONENT = np.array([[3**-0.5, 2**-0.5, 6**-0.5], [3**-0.5, 0.0, -2 * 6**-0.5], [3**-0.5, -(2**-0.5), 6**-0.5]])
OPPONENT = OPPONENT.astype(np.float32)


class Scenes:
    """A pool of still scenes, uint8 [count, 3, SCENE_SIDE, SCENE_SIDE]."""

    def __init__(self, rng: np.random.Generator, count: int) -> None:
        textures = [power_law_noise(rng, slope) for slope in np.linspace(0.3, 1.9, 12)]
        self.pictures = torch.stack([to_picture(scene(rng, textures)) for _ in range(count)])

    def pick(self, rng: np.random.Generator) -> torch.Tensor:
        """One scene as float32 [1, 3, SCENE_SIDE, SCENE_SIDE], values 0..255, turned or mirrored at random."""
        picture = self.pictures[rng.integers(len(self.pictures))]
        if rng.random() < 0.5:
            picture = picture.flip(2)
        return picture[None].float()


def to_picture(scene: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.clip(np.rint(scene), 0, 255).astype(np.uint8)).permute(2, 0, 1).contiguous()


def power_law_noise(rng: np.random.Generator, slope: float) -> np.ndarray:
    """Gaussian noise with an amplitude of 1/f^slope, float32 [TEXTURE_SIDE, TEXTURE_SIDE], periodic, unit deviation."""
    fy, fx = np.fft.fftfreq(TEXTURE_SIDE)[:, None], np.fft.rfftfreq(TEXTURE_SIDE)[None, :]
    stretch = np.exp(rng.normal(0, 0.4))
    f = np.hypot(fy * stretch, fx / stretch)
    f[0, 0] = np.inf
    spectrum = np.fft.rfft2(rng.standard_normal((TEXTURE_SIDE, TEXTURE_SIDE))) * np.maximum(f, 1 / 128) ** -slope
    field = np.fft.irfft2(spectrum, s=(TEXTURE_SIDE, TEXTURE_SIDE))
    return ((field - field.mean()) / field.std()).astype(np.float32)


def colour(rng: np.random.Generator, vivid: float) -> np.ndarray:
    """An RGB colour, 0..255: any brightness, mostly little saturation, a little more red-blue than green-magenta."""
    light = rng.beta(1.1, 1.3) * 255 * 3**0.5
    red_blue, green = rng.standard_t(3, 2) * vivid * np.array([1.0, 0.7])
    return OPPONENT @ np.array([light, red_blue, green], np.float32)


def scene(rng: np.random.Generator, textures: list[np.ndarray]) -> np.ndarray:
    """Float32 [SCENE_SIDE, SCENE_SIDE, 3], roughly 0..255: one scene with leaves of a size and roughness of its own."""
    side = SCENE_SIDE
    picture = np.empty((side, side, 3), np.float32)
    vivid, rough = rng.uniform(5, 35), np.exp(rng.uniform(np.log(2.0), np.log(36.0)))
    smallest, largest = np.exp(rng.uniform(np.log(1.5), np.log(9.0))), rng.uniform(60, 240)
    cluttered = rng.uniform(0.2, 2.2)
    fill(rng, picture, 1.0, textures, vivid, rough)
    mean_area = 2 * np.pi * smallest**2 * np.log(largest / smallest)
    for _ in range(int(min(5000, cluttered * side * side / mean_area))):
        radius = (rng.uniform(largest**-2, smallest**-2)) ** -0.5
        leaf(rng, picture, radius, textures, vivid, rough)
    y, x = np.meshgrid(*[np.linspace(-1, 1, side, dtype=np.float32)] * 2, indexing="ij")
    light = 1 + rng.normal(0, 0.2) * x + rng.normal(0, 0.2) * y
    picture *= np.clip(light, 0.3, 1.7)[..., None]
    return picture


def leaf(
    rng: np.random.Generator, picture: np.ndarray, radius: float, textures: list[np.ndarray], vivid: float, rough: float
) -> None:
    """Draws one opaque leaf over the picture: an ellipse, a box or a wavy blob, sharp or out of focus, at any angle."""
    side = len(picture)
    cy, cx = rng.uniform(-radius, side + radius, 2)
    longer = np.exp(abs(rng.normal(0, 0.7)))
    soft = 0.5 if rng.random() < 0.8 else rng.uniform(0.5, 4.0)
    reach = radius * longer * 1.45 + soft
    top, bottom = max(0, int(cy - reach)), min(side, int(cy + reach) + 2)
    left, right = max(0, int(cx - reach)), min(side, int(cx + reach) + 2)
    if bottom <= top or right <= left:
        return
    y = np.arange(top, bottom, dtype=np.float32)[:, None] - np.float32(cy)
    x = np.arange(left, right, dtype=np.float32)[None, :] - np.float32(cx)
    angle = rng.choice([0, np.pi / 2]) + rng.normal(0, 0.03) if rng.random() < 0.4 else rng.uniform(0, np.pi)
    c, s = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    u, v = (c * x + s * y) / np.float32(longer), (c * y - s * x) * np.float32(longer**0.5)
    kind = rng.random()
    if kind < 0.45:
        distance = np.maximum(np.abs(u), np.abs(v))
    elif kind < 0.8 or radius < 4:
        distance = np.sqrt(u * u + v * v)
    else:
        waves = rng.uniform(0.05, 0.35) * np.cos(rng.integers(2, 7) * np.arctan2(v, u) + np.float32(rng.uniform(0, 6)))
        distance = np.sqrt(u * u + v * v) * (1 + waves.astype(np.float32))
    cover = np.clip((np.float32(radius) - distance) / np.float32(2 * soft) + 0.5, 0, 1)[..., None]
    inside = np.empty((bottom - top, right - left, 3), np.float32)
    fill(rng, inside, radius / side, textures, vivid, rough)
    patch = picture[top:bottom, left:right]
    patch += cover * (inside - patch)


def fill(
    rng: np.random.Generator, out: np.ndarray, size: float, textures: list[np.ndarray], vivid: float, rough: float
) -> None:
    """Fills `out` with a colour, a gradient and a texture."""
    height, width, _ = out.shape
    paint = colour(rng, vivid)
    out[:] = paint
    if size < 0.01:
        return
    y = np.linspace(-1, 1, height, dtype=np.float32)[:, None]
    x = np.linspace(-1, 1, width, dtype=np.float32)[None, :]
    across, down, bulge = rng.normal(0, 25, 3).astype(np.float32)
    shade = across * x + down * y + bulge * (x * x + y * y - 0.7)
    shades = OPPONENT @ np.array([1.0, rng.normal(0, 0.12), rng.normal(0, 0.08)], np.float32)
    own = np.maximum(paint, 10.0)  # shades of the paint's own colour: light and shadow, not another paint
    shades += rng.random() * (own / np.linalg.norm(own) - shades)
    contrast = rough * np.exp(rng.normal(0, 0.7))
    if size < 0.9 and rng.random() < 0.1:
        turn = rng.uniform(0, np.pi)
        period = np.exp(rng.uniform(np.log(3), np.log(30)))
        phase = (np.cos(turn) * x * width + np.sin(turn) * y * height) * np.float32(np.pi / period)
        shade = shade + np.float32(rng.uniform(10, 70)) * np.clip(rng.uniform(1, 8) * np.sin(phase), -1, 1)
    elif rng.random() < 0.8:
        texture = textures[rng.integers(len(textures))]
        top, left = rng.integers(0, TEXTURE_SIDE - height + 1), rng.integers(0, TEXTURE_SIDE - width + 1)
        shade = shade + np.float32(contrast) * texture[top : top + height, left : left + width]
    out += shade[..., None] * shades


class Motion:
    """An affine path: where the pixels of every frame lie in a scene."""

    def __init__(self, rng: np.random.Generator, still: float) -> None:
        self.moving = rng.random() >= still
        speed = np.exp(rng.uniform(np.log(0.15), np.log(20.0))) if self.moving else 0.0
        heading = rng.uniform(0, 2 * np.pi) if rng.random() < 0.5 else rng.choice([0, np.pi])
        self.velocity = speed * np.array([np.cos(heading), np.sin(heading)])
        self.bend = rng.normal(0, 0.03, 2) * speed
        self.zoom = rng.normal(0, 0.02) if self.moving and rng.random() < 0.4 else 0.0
        self.spin = rng.normal(0, 0.015) if self.moving and rng.random() < 0.3 else 0.0
        self.shake = rng.uniform(0, 1.0) if self.moving and rng.random() < 0.3 else 0.0
        self.step = np.exp(rng.uniform(np.log(0.55), np.log(1.35)))
        self.angle = rng.normal(0, 0.1) + rng.integers(4) * np.pi / 2
        self.start = rng.uniform(0.15, 0.85, 2) * SCENE_SIDE
        self.jitter = rng.standard_normal((64, 2)).cumsum(0) * 0.7

    def grid(self, times: np.ndarray, size: int) -> torch.Tensor:
        """Coordinates for grid_sample, float32 [1, T * size, size, 2]."""
        step, angle = self.step * np.exp(self.zoom * times), self.angle + self.spin * times
        offset = self.start + times[:, None] * self.velocity + times[:, None] ** 2 * self.bend
        offset = offset + self.shake * self.jitter[np.floor(times).astype(int)]
        pixel = np.arange(size) - (size - 1) / 2
        y, x = pixel[None, :, None], pixel[None, None, :]
        c, s = (step * np.cos(angle))[:, None, None], (step * np.sin(angle))[:, None, None]
        columns, rows = c * x - s * y + offset[:, 0, None, None], s * x + c * y + offset[:, 1, None, None]
        grid = np.stack([columns, rows], -1).reshape(1, -1, size, 2) * (2 / SCENE_SIDE) - 1
        return torch.from_numpy(grid.astype(np.float32))

    def film(self, picture: torch.Tensor, times: np.ndarray, size: int, sampling: str) -> torch.Tensor:
        """Float32 [T, 3, size, size]; a picture that does not move is sampled once."""
        used = times if self.moving else times[:1]
        shot = F.grid_sample(picture, self.grid(used, size), sampling, "reflection", align_corners=False)
        frames = shot[0].view(3, len(used), size, size).transpose(0, 1)
        return frames.expand(len(times), -1, -1, -1)


@torch.no_grad()
def training_clip(rng: np.random.Generator, scenes: Scenes, frames: int, size: int) -> torch.Tensor:
    """One clip, float32 [3, frames, size, size] in [-1, 1], rounded to 256 levels."""
    times = np.arange(frames) + rng.integers(0, 18 - frames)
    camera = Motion(rng, still=0.4)
    objects = [(Motion(rng, still=0.1), Outline(rng, size), scenes.pick(rng)) for _ in range(rng.integers(0, 3))]
    background = scenes.pick(rng)
    blurred = rng.random() < 0.4 and (camera.moving or len(objects) > 0)
    sampling, exposures = ("bilinear", (0.0, 0.25, 0.5)) if blurred else ("bicubic", (0.0,))
    shots = []
    for moments in (times + exposure for exposure in exposures):
        shot = camera.film(background, moments, size, sampling)
        for motion, outline, picture in objects:
            shot = shot + outline.cover(moments) * (motion.film(picture, moments, size, sampling) - shot)
        shots.append(shot)
    clip = torch.stack(shots).mean(0)
    return finish(rng, clip, times).transpose(0, 1)


class Outline:
    """The outline of an object that crosses the picture."""

    def __init__(self, rng: np.random.Generator, size: int) -> None:
        self.size = size
        self.radius = size * np.exp(rng.uniform(np.log(0.08), np.log(0.6)))
        self.power = rng.choice([2.0, 6.0])
        self.lobes, self.wave, self.angle = rng.integers(2, 6), rng.uniform(0, 0.3), rng.uniform(0, 6)
        self.longer = np.exp(rng.normal(0, 0.4))
        speed = np.exp(rng.uniform(np.log(0.3), np.log(25.0)))
        heading = rng.uniform(0, 2 * np.pi)
        self.velocity = speed * np.array([np.cos(heading), np.sin(heading)])
        self.middle = rng.uniform(0.1, 0.9, 2) * size - self.velocity * rng.uniform(0, 16)
        self.soft = 0.6 if rng.random() < 0.75 else rng.uniform(0.6, 3.0)

    def cover(self, times: np.ndarray) -> torch.Tensor:
        """Float32 [T, 1, size, size] in 0..1."""
        centre = (self.middle + times[:, None] * self.velocity).astype(np.float32)
        pixel = np.arange(self.size, dtype=np.float32)
        x = (pixel[None, None, :] - centre[:, 0, None, None]) / np.float32(self.longer)
        y = (pixel[None, :, None] - centre[:, 1, None, None]) * np.float32(self.longer)
        waves = 1 + self.wave * np.cos(self.lobes * np.arctan2(y, x) + self.angle)
        distance = (np.abs(x) ** self.power + np.abs(y) ** self.power) ** (1 / self.power) * waves
        cover = np.clip((self.radius - distance) / (2 * self.soft) + 0.5, 0, 1)
        return torch.from_numpy(cover.astype(np.float32))[:, None]


def finish(rng: np.random.Generator, clip: torch.Tensor, times: np.ndarray) -> torch.Tensor:
    """Changes of light, contrast, softness and noise on [T, 3, H, W]; returns values in [-1, 1]."""
    gain = np.exp(rng.normal(0, 0.15) + (rng.normal(0, 0.02) if rng.random() < 0.3 else 0.0) * (times - times[0]))
    lift = rng.normal(0, 15)
    if rng.random() < 0.35:
        clip = torch.einsum("ij,tjhw->tihw", torch.from_numpy(other_hues(rng)), clip)
    clip = clip * torch.from_numpy(gain.astype(np.float32)).view(-1, 1, 1, 1) + lift
    if rng.random() < 0.35:
        clip = soften(clip, rng.uniform(0.3, 1.1))
    if rng.random() < 0.4:
        generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        clip = clip + rng.uniform(0.5, 4.0) * torch.randn(clip.shape, generator=generator)
    return clip.round().clamp(0, 255) / 127.5 - 1


def other_hues(rng: np.random.Generator) -> np.ndarray:
    """A matrix on RGB that keeps brightness, turns all hues by one angle and makes them paler or more vivid."""
    turn, more = rng.uniform(0, 2 * np.pi), np.exp(rng.uniform(-0.3, 1.1))
    c, s = more * np.cos(turn), more * np.sin(turn)
    return (OPPONENT @ np.array([[1, 0, 0], [0, c, -s], [0, s, c]]) @ OPPONENT.T).astype(np.float32)


def soften(clip: torch.Tensor, sigma: float) -> torch.Tensor:
    """A Gaussian blur of `sigma` pixels."""
    taps = torch.exp(-0.5 * (torch.arange(-3, 4) / sigma) ** 2)
    taps = (taps / taps.sum()).repeat(3, 1)
    clip = F.conv2d(F.pad(clip, (3, 3, 0, 0), "replicate"), taps[:, None, None, :], groups=3)
    return F.conv2d(F.pad(clip, (0, 0, 3, 3), "replicate"), taps[:, None, :, None], groups=3)
