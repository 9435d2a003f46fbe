"""What the shape detector of the demo sees in a video."""

from __future__ import annotations

import numpy as np

from worldsmith.demo.adherence import detect
from worldsmith.demo.moving_shapes import Attributes


def seen_attributes(video: np.ndarray) -> Attributes | None:
    """Returns the detected color, shape and direction; None if at least one of the three is ambiguous."""
    found = detect(video)
    if found.colour is None or found.shape is None or found.direction is None:
        return None
    return Attributes(found.colour, found.shape, found.direction)
