"""The parts of botocore that are not public. Checked with botocore 1.43.117."""

from __future__ import annotations

from typing import Any


def expiry(credentials: Any) -> Any:
    """When credentials expire (a datetime); None if they do not, as far as botocore says."""
    return getattr(credentials, "_expiry_time", None)
