"""`python -m diffusionblocks` is `dblocks`."""

import sys

from diffusionblocks.cli import main

sys.exit(main())
