"""One module for each client library; it is imported when its client is made."""

from __future__ import annotations

import importlib
from importlib import metadata, util

from ....base.errors import UsageError
from ....base.extras import install_command
from ..options import S3Options
from .base import Client

_CLIENTS = {
    "obstore": ("obstore:ObstoreClient", "s3", ("obstore", "botocore")),
    "s3fs": ("s3fs:S3fsClient", "s3", ("s3fs", "botocore")),
    "boto3": ("boto3:Boto3Client", "boto3", ("boto3", "botocore")),
}
"""Name -> (class, extra, packages). botocore finds credentials and settings for all of them."""


def check_installed(name: str) -> None:
    """Raises UsageError that names the extra to install. Imports nothing."""
    _, extra, packages = _CLIENTS[name]
    for package in packages:
        if util.find_spec(package) is None:
            raise UsageError(
                f"s3 client '{name}' needs the Python package '{package}'",
                remedy=f"install it: {install_command(extra)}",
            )


def make_client(options: S3Options, bucket: str) -> Client:
    """A client. Contacts nothing, but may search for credentials. Raises Failure, UsageError."""
    module, _, attribute = _CLIENTS[options.client][0].partition(":")
    client: Client = getattr(importlib.import_module(f"{__name__}.{module}"), attribute)(
        options, bucket
    )
    return client


def versions(name: str) -> dict[str, str]:
    return {package: metadata.version(package) for package in _CLIENTS[name][2]}
