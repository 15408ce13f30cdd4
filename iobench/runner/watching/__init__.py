"""``iobench.watch``: measure the loader of a training that iobench does not run.

context.py is what the user's script holds, host.py looks at the host around each iteration,
place.py finds the directory that all ranks of a host share, and merged.py makes the record.
"""

from .context import Watch as Watch
from .context import watch as watch
