"""Named runs, one file a family. Importing this package registers them."""

from worldsmith.recipes import cogvideox as cogvideox
from worldsmith.recipes import cosmos3 as cosmos3
from worldsmith.recipes import cosmos_rl as cosmos_rl
from worldsmith.recipes import flux as flux
from worldsmith.recipes import vision_language as vision_language
from worldsmith.recipes import wan as wan
