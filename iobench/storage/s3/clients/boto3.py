"""boto3: AWS's own SDK for Python. About 1 ms of CPU time per request."""

from __future__ import annotations

from typing import Any

import boto3

from .boto_api import BotocoreClient


class Boto3Client(BotocoreClient):
    def make(self) -> Any:
        return boto3.session.Session(botocore_session=self.chain.session).client(
            "s3", **self.arguments()
        )
