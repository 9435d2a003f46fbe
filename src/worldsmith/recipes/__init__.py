"""Named runs. Importing this package registers them."""

from worldsmith.recipes import vision_tiny as vision_tiny
