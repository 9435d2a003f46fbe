"""Named runs, one file a family. Importing this package registers them."""

from worldsmith.recipes import cosmos3 as cosmos3
