"""Storage options of fsspec, as pyarrow spells them: one set of settings for the driver's client and for executors'."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.exchange.objects import RemoteFolder

SCHEMES = frozenset({"s3", "s3a", "gs", "abfs", "abfss"})
"""Object stores that a working directory may name."""
_S3 = {
    "key": "access_key",
    "aws_access_key_id": "access_key",
    "secret": "secret_key",
    "aws_secret_access_key": "secret_key",
    "token": "session_token",
    "aws_session_token": "session_token",
    "region": "region",
    "region_name": "region",
    "anon": "anonymous",
}


def is_in_object_store(text: str) -> bool:
    """Tell whether a setting names an object store that rows may go through."""
    return text.partition("://")[0] in SCHEMES and "://" in text


def remote_folder(uri: str, options: Mapping[str, str]) -> RemoteFolder:
    """Return the folder as tasks reach it. Raises InvalidRequest for an option that pyarrow has no word for."""
    uri = uri.rstrip("/")
    scheme, _, rest = uri.partition("://")
    if scheme not in SCHEMES or not rest.partition("/")[0]:
        raise InvalidRequest(
            f"work_dir {uri!r} names no bucket of an object store: write {', '.join(sorted(SCHEMES))}://bucket/folder, "
            "or a path"
        )
    if scheme in ("s3", "s3a"):
        return RemoteFolder(uri, tuple(sorted(_s3_settings(uri, options).items())))
    return RemoteFolder(uri)


def _s3_settings(uri: str, options: Mapping[str, str]) -> dict[str, str]:
    unknown = sorted(set(options) - _S3.keys() - {"endpoint_url"})
    if unknown:
        raise InvalidRequest(
            f"storage_options has {unknown[0]!r}, which executors cannot use to reach work_dir {uri}: they understand "
            f"endpoint_url, {', '.join(sorted(set(_S3)))}. Set it in the environment of driver and executors instead "
            "(AWS_PROFILE, AWS_ENDPOINT_URL, …), or give work_dir a folder that all machines mount"
        )
    found = {_S3[name]: str(value) for name, value in options.items() if name in _S3}
    if "anonymous" in found:
        found["anonymous"] = found["anonymous"].lower()
    endpoint = options.get("endpoint_url") or _variable("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    region = found.get("region") or _variable("AWS_REGION", "AWS_DEFAULT_REGION")
    if endpoint:
        parts = urlsplit(endpoint)
        found |= {"endpoint_override": parts.netloc, "scheme": parts.scheme}
        region = region or "us-east-1"  # else the region is looked up at Amazon's
    return found | ({"region": region} if region else {})


def _variable(*names: str) -> str:
    return next((value for name in names if (value := os.environ.get(name))), "")
