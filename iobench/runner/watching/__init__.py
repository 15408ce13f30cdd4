"""``iobench.watch``: measure the loader of a training that iobench does not run.

context.py is what the user's script holds, host.py looks at the host around each iteration,
and record.py makes the record of what all ranks of a host leave.
"""

from .context import Watch as Watch
from .context import watch as watch
