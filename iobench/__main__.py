"""The command ``iobench``, also as ``python -m iobench``."""

import signal
import sys


def main() -> int:
    """Import the command line and run it. Ctrl-C and SIGTERM end the import in one line, too."""
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        from .cli.main import main as run
    except KeyboardInterrupt:
        sys.stderr.write("iobench: interrupted\n")
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
