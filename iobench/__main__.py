"""``python -m iobench`` is ``iobench``."""

import sys

from .cli.main import main

sys.exit(main())
