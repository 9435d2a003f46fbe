"""Random crops and colors of the images of robot episodes, the same for all cameras and frames of a window."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from worldsmith.config import Config
from worldsmith.config.declare.ranges import Factor, Range

if TYPE_CHECKING:
    import numpy as np


class AugmentationConfig(Config):
    """Random changes of the images of a window: crop, brightness, contrast, saturation and hue."""

    crop: Annotated[float, Range(gt=0, le=1)] = 1.0
    """Fraction of the height and of the width that a crop at a random place keeps; the rest is scaled to the old
    size. 1.0 = no crop."""
    brightness: Factor = 0.0
    """The brightness is multiplied by a random number from 1 − this to 1 + this, at least 0. 0 = no change."""
    contrast: Factor = 0.0
    """As `brightness`, for the contrast."""
    saturation: Factor = 0.0
    """As `brightness`, for the saturation."""
    hue: Annotated[float, Range(ge=0, le=0.5)] = 0.0
    """The hue is turned by a random fraction of a full circle, from −this to +this. 0 = no change."""

    @property
    def is_active(self) -> bool:
        """Whether any image is changed."""
        return self != type(self)()

    def draw(self, rng: random.Random) -> Augmentation:
        """Returns the random changes for a window; colors change in random order, as in torchvision."""
        names = [name for name in ("brightness", "contrast", "saturation", "hue") if getattr(self, name)]
        rng.shuffle(names)
        ranges = {name: getattr(self, name) for name in names}
        colors = tuple(
            (name, rng.uniform(-most, most) if name == "hue" else rng.uniform(max(0.0, 1 - most), 1 + most))
            for name, most in ranges.items()
        )
        return Augmentation(self.crop, rng.random(), rng.random(), colors)


@dataclass(frozen=True, slots=True)
class Augmentation:
    """One random choice of changes, which is applied to all images of a window."""

    crop: float
    """Fraction of height and width that is kept."""
    top: float
    left: float
    """Place of the crop: 0 = at the top or left edge, 1 = at the bottom or right edge."""
    colors: tuple[tuple[str, float], ...]
    """(name, factor) of each change of the colors, in order; for the hue, the fraction of a circle."""

    def cropped(self, image: np.ndarray) -> np.ndarray:
        """Returns the part of an image [H, W, 3] that is kept."""
        (height, width), keep = image.shape[:2], self.crop
        rows, columns = max(1, round(height * keep)), max(1, round(width * keep))
        top, left = round((height - rows) * self.top), round((width - columns) * self.left)
        return image[top : top + rows, left : left + columns]

    def recolored(self, image: np.ndarray) -> np.ndarray:
        """Returns an image [H, W, 3], uint8, with changed colors."""
        import numpy as np
        from PIL import Image, ImageEnhance

        enhancers = {
            "brightness": ImageEnhance.Brightness,
            "contrast": ImageEnhance.Contrast,
            "saturation": ImageEnhance.Color,
        }
        picture = Image.fromarray(image)
        for name, factor in self.colors:
            if name == "hue":
                turn, (hue, *others) = int(factor * 255), picture.convert("HSV").split()
                turned = hue.point([(value + turn) % 256 for value in range(256)])
                picture = Image.merge("HSV", (turned, *others)).convert("RGB")
            else:
                picture = enhancers[name](picture).enhance(factor)
        return np.asarray(picture)
