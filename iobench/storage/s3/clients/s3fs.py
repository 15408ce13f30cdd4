"""s3fs, through fsspec: what many trainings read with. About 2 CPU ms for each request, whatever the storage does."""

from __future__ import annotations

import io
from typing import Any

import s3fs
from aiobotocore.session import get_session

from ...base import Buffer
from ..errors import Failure, Kind
from ..options import S3Options
from .boto_api import BotoApi, config, copied, understood
from .chain import LOADER, Chain


class S3fsClient(BotoApi):
    """Not all of its repetitions are counted: aiohttp sends a request again by itself where a kept connection turns out to be closed."""

    def __init__(self, options: S3Options, bucket: str) -> None:
        self.bucket = bucket
        self.chain = chain = Chain(options, bucket)
        settings = config(options, chain)
        settings.pop("signature_version", None)  # s3fs sets it itself where it is anonymous
        session = get_session()
        session.register_component("data_loader", LOADER)
        self._files = s3fs.S3FileSystem(
            session=session,
            anon=options.signing == "none",
            endpoint_url=chain.endpoint or None,
            client_kwargs={"region_name": chain.region, "verify": chain.verify},
            config_kwargs=settings,
            use_listings_cache=False,
            skip_instance_cache=True,  # else one instance, with its connections, would be shared by all storages
        )
        self._files.retries = 1  # attempts, not repetitions: ours are counted

    def call(self, operation: str, **arguments: Any) -> Any:
        if isinstance(body := arguments.get("Body"), bytes | bytearray):
            arguments["Body"] = io.BytesIO(body)  # aiohttp warns of bytes
        try:
            return self._files.call_s3(operation, Bucket=self.bucket, **arguments)
        except Exception as error:
            failure = self.chain.hidden(understood(error))
        raise failure

    def get(self, key: str, offset: int, buffer: Buffer) -> int:
        try:
            data = self._files.cat_file(
                f"{self.bucket}/{key}", start=offset, end=offset + len(buffer)
            )
        except Exception as error:
            failure = self.chain.hidden(understood(error))
        else:
            if len(data) <= len(buffer):
                return copied(data, buffer)
            failure = Failure(Kind.UNSUPPORTED, detail="the server ignores ranges")
        raise failure

    def close(self) -> None:
        if self._files._s3 is not None:
            self._files.close_session(self._files.loop, self._files._s3)
            self._files._s3 = self._files._s3creator = None
