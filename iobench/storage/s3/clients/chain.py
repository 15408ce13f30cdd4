"""The standard chain of configuration and credentials, as botocore searches it.

Environment, shared files and profiles, SSO, container credentials, the instance's role.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import botocore.loaders
import botocore.session
from botocore.configprovider import ConfiguredEndpointProvider
from botocore.exceptions import BotoCoreError

from ....base.errors import UsageError
from ..errors import Failure, Kind
from ..options import S3Options, check_endpoint
from ..wire import S3Settings
from .botocore_compat import stay

LOADER = botocore.loaders.create_loader()
"""Caches the description of S3's operations for all clients of a process: parsing takes 0.1 s."""


class Chain:
    """Settings from the options, or else from the environment and the shared files.

    Never pickled and never shown, since it holds credentials.
    """

    def __init__(self, options: S3Options, bucket: str) -> None:
        self._options = options
        self._bucket = bucket
        self._credentials: Any = None
        self.session = botocore.session.get_session()
        self.session.register_component("data_loader", LOADER)
        stay(self.session)
        try:
            profile = self.session.get_scoped_config()
            self.region = (
                options.region
                or os.environ.get("AWS_REGION")
                or self.session.get_config_variable("region")
                or "us-east-1"
            )
            configured = ConfiguredEndpointProvider(
                self.session.full_config, profile, "s3"
            ).provide()
        except BotoCoreError as error:
            # A profile that does not exist, or a file that can't be parsed: no secret in it.
            unusable = " ".join(str(error).split())[:200]
        else:
            self.endpoint = options.endpoint or check_endpoint(
                configured or "", "the endpoint of AWS_ENDPOINT_URL or the profile"
            )
            return
        raise UsageError(
            f"the AWS configuration can't be used: {unusable}",
            remedy="check AWS_PROFILE and the shared configuration files",
        )

    @property
    def path_style(self) -> bool:
        """Whether the bucket's name goes into the path instead of the host name.

        AWS wants it in the host name, most other servers in the path. No certificate matches the
        host name of a bucket with a dot in its name.
        """
        if self._options.addressing != "auto":
            return self._options.addressing == "path"
        return bool(self.endpoint) or "." in self._bucket

    @property
    def verify(self) -> bool | str:
        """True, False, or the path of a file of certificates."""
        if self._options.tls_verify == "false":
            return False
        if self._options.tls_verify != "true":
            return self._options.tls_verify
        bundle = self.session.get_config_variable("ca_bundle")
        return str(bundle) if bundle and Path(bundle).is_file() else True

    def credentials(self) -> Any:
        """botocore's Credentials, which renew themselves. Raises Failure (NO_CREDENTIALS)."""
        if self._credentials is not None:
            return self._credentials
        try:
            found = self.session.get_credentials()
        except BotoCoreError as error:
            unusable = type(error).__name__
        else:
            if found is not None:
                self._credentials = found
                return found
            unusable = ""
        raise Failure(Kind.NO_CREDENTIALS, code=unusable)

    def wire_settings(self) -> S3Settings:
        """What is needed to send requests as the client does. Raises Failure."""
        return S3Settings(
            endpoint=self.endpoint,
            region=self.region,
            bucket=self._bucket,
            path_style=self.path_style,
            verify=self.verify,
            timeout=self._options.timeout,
            credentials=None if self._options.signing == "none" else self.credentials(),
        )

    def redacted(self, failure: Failure) -> Failure:
        """The failure, with credentials removed from the server's text."""
        if failure.detail and self._options.signing != "none":
            try:
                secrets = self.credentials().get_frozen_credentials()
            except (Failure, BotoCoreError):
                return failure
            for secret in filter(None, secrets):
                failure.detail = failure.detail.replace(secret, "***")
        return failure

    def facts(self) -> dict[str, Any]:
        return {
            "endpoint": self.endpoint or None,
            "region": self.region,
            "addressing": "path" if self.path_style else "virtual",
        }
