"""Storage options of fsspec, as pyarrow spells them: one set of settings for the driver's client and for executors'."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import urlsplit

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.exchange.objects import RemoteFolder

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
_PRINCIPAL = ("client_id", "tenant_id", "client_secret")
AZURE = ("account_name", "account_key", "sas_token", "connection_string", *_PRINCIPAL)
"""The same words for fsspec's client and for pyarrow's; ``AZURE_STORAGE_…`` in the environment means the former's."""
_ACCOUNT = re.compile(r"(?P<name>[^./]+)\.(dfs|blob)\.")
_GOOGLE = ("endpoint_url", "project", "token")


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
    return RemoteFolder(uri, tuple(sorted(_SETTINGS[scheme](uri, options).items())))


def azure_folder(uri: str, options: Mapping[str, str], *, what: str) -> RemoteFolder:
    """Return a folder of a container, by options of adlfs. Raises InvalidRequest where no account is named."""
    return RemoteFolder(uri, tuple(sorted(_azure_settings(uri, options, what).items())))


def _s3_settings(uri: str, options: Mapping[str, str]) -> dict[str, str]:
    _refuse_unknown(uri, options, [*_S3, "endpoint_url"], "AWS_PROFILE, AWS_ENDPOINT_URL, …")
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


def _azure_settings(uri: str, options: Mapping[str, str], what: str = "") -> dict[str, str]:
    """As ``adlfs`` chooses: a connection string before all else, then an account key, a SAS token, an identity."""
    _refuse_unknown(
        uri,
        options,
        AZURE,
        "AZURE_CLIENT_ID, AZURE_TENANT_ID, …, an identity of the machines",
    )
    told = _parts_of(options.get("connection_string") or _variable("AZURE_STORAGE_CONNECTION_STRING"))
    given = {name: options.get(name) or _variable(f"AZURE_STORAGE_{name.upper()}") for name in AZURE}
    account = (
        told.get("AccountName")
        or _account_in(told.get("BlobEndpoint", ""))
        or _account_in(uri)
        or given["account_name"]
    )
    if not account:
        raise InvalidRequest(
            f"{what or f'work_dir {uri}'} does not say in which account its container is: write "
            "abfss://container@account.dfs.core.windows.net/folder, or give account_name in storage_options"
        )
    if told:
        given = {
            "account_key": told.get("AccountKey", ""),
            "sas_token": told.get("SharedAccessSignature", ""),
        }
    # pyarrow takes one of them
    chosen = next((kind for kind in (("account_key",), ("sas_token",), _PRINCIPAL) if given.get(kind[0])), ())
    found = {
        "account_name": account,
        **{name: given[name] for name in chosen},
        **_azure_endpoint(account, told),
    }
    if "sas_token" in chosen:  # pyarrow puts it behind the address as it is
        found["sas_token"] = f"?{found['sas_token'].removeprefix('?')}"
    return {name: value for name, value in found.items() if value}


def _account_in(uri: str) -> str:
    match = _ACCOUNT.match(urlsplit(uri).hostname or "")
    return match["name"] if match else ""


def _azure_endpoint(account: str, told: Mapping[str, str]) -> dict[str, str]:
    """Return where the account is reached, where that is no public cloud: an emulator, another cloud's suffix."""
    parts = urlsplit(told.get("BlobEndpoint", ""))
    if parts.netloc and _account_in(parts.geturl()) != account:  # in the path, as an emulator has it
        names = {"authority": parts.netloc, "scheme": parts.scheme}
        return {f"{kind}_storage_{name}": value for kind in ("blob", "dfs") for name, value in names.items()}
    suffix = told.get("EndpointSuffix", "") or parts.netloc.partition(".blob.")[2]
    return {f"{kind}_storage_authority": f".{kind}.{suffix}" for kind in ("blob", "dfs")} if suffix else {}


def _parts_of(connection: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in connection.split(";") if part.strip())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _google_settings(uri: str, options: Mapping[str, str]) -> dict[str, str]:
    _refuse_unknown(uri, options, [*_GOOGLE], "GOOGLE_APPLICATION_CREDENTIALS, an identity of the machines")
    token = options.get("token", "")
    if token not in ("", "anon", "google_default", "cloud"):
        raise InvalidRequest(
            f"storage_options has a token of its own, which executors cannot use to reach work_dir {uri}: name its "
            "file in GOOGLE_APPLICATION_CREDENTIALS, on the driver and on executors, or give their machines an identity"
        )
    endpoint = options.get("endpoint_url") or _variable("STORAGE_EMULATOR_HOST")
    parts = urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}")
    found = {
        "anonymous": "true" if token == "anon" else "",
        "project_id": options.get("project", ""),
        "endpoint_override": parts.netloc,
        "scheme": parts.scheme if endpoint else "",
    }
    return {name: value for name, value in found.items() if value}


_SETTINGS: Mapping[str, Callable[[str, Mapping[str, str]], dict[str, str]]] = {
    "s3": _s3_settings,
    "s3a": _s3_settings,
    "abfs": _azure_settings,
    "abfss": _azure_settings,
    "gs": _google_settings,
}
SCHEMES = frozenset(_SETTINGS)
"""Object stores that a working directory may name."""


def _refuse_unknown(uri: str, options: Mapping[str, str], known: Sequence[str], instead: str) -> None:
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise InvalidRequest(
            f"storage_options has {unknown[0]!r}, which executors cannot use to reach work_dir {uri}: they understand "
            f"{', '.join(sorted(known))}. Set it in the environment of driver and executors instead "
            f"({instead}), or give work_dir a folder that all machines mount"
        )


def _variable(*names: str) -> str:
    return next((value for name in names if (value := os.environ.get(name))), "")
