"""Named runs. Importing this package registers them."""

from worldsmith.recipes import vision_sft as vision_sft
from worldsmith.recipes import vision_sft_tiny_twins as vision_sft_tiny_twins
from worldsmith.recipes import vision_tiny as vision_tiny
