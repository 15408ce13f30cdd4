"""``python -m iobench`` runs the command ``iobench``."""

import sys

from .cli.main import main

sys.exit(main())
