"""s3fs, through fsspec, which many trainings read with. About 2 ms of CPU time per request."""

from __future__ import annotations

import io
from typing import Any

import s3fs
from aiobotocore.session import get_session

from ...base import Buffer
from ..errors import Failure, Kind
from ..options import S3Options
from . import s3fs_compat
from .boto_api import BotoApi, config, copy_into, range_length, to_failure
from .botocore_compat import stay
from .chain import LOADER, Chain


class S3fsClient(BotoApi):
    """Not all of its retries are counted.

    aiohttp itself retries a request when a kept connection turns out to be closed.
    """

    def __init__(self, options: S3Options, bucket: str) -> None:
        self.bucket = bucket
        self.chain = chain = Chain(options, bucket)
        settings = config(options, chain)
        settings.pop("signature_version", None)  # s3fs sets it itself for anonymous requests
        settings["http_session_cls"] = s3fs_compat.session_class(options.deadline)
        session = get_session()
        stay(session)
        session.register_component("data_loader", LOADER)
        self._files = s3fs.S3FileSystem(
            session=session,
            anon=options.signing == "none",
            endpoint_url=chain.endpoint or None,
            client_kwargs={"region_name": chain.region, "verify": chain.verify},
            config_kwargs=settings,
            use_listings_cache=False,
            skip_instance_cache=True,  # all storages would share one instance and its connections
        )
        s3fs_compat.turn_off_retries(self._files)

    def call(self, operation: str, **arguments: Any) -> Any:
        if isinstance(body := arguments.get("Body"), bytes | bytearray):
            arguments["Body"] = io.BytesIO(body)  # aiohttp warns about bytes
        try:
            return self._files.call_s3(operation, Bucket=self.bucket, **arguments)
        except Exception as error:
            failure = self.chain.redacted(to_failure(error))
        raise failure

    def get(self, key: str, offset: int, buffer: Buffer) -> int:
        want = len(buffer)
        extent = f"bytes={offset}-{offset + want - 1}"

        def coming(answer: dict[str, Any]) -> int:
            return range_length(answer, offset, want)

        try:
            data, length = s3fs_compat.get_range(self._files, self.bucket, key, extent, coming)
        except Exception as error:
            failure = self.chain.redacted(to_failure(error))
        else:
            if len(data) == length:
                return copy_into(buffer, data)
            failure = Failure(Kind.LOST, detail=f"got {len(data)} of {length} bytes")
        raise failure

    def close(self) -> None:
        s3fs_compat.close(self._files)
