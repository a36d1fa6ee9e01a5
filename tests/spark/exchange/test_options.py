"""Storage options of Azure and Google, as executors' client and Spark's connector are told of them."""

from __future__ import annotations

import pytest

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.exchange.options import remote_folder
from dagster_ckpt.spark.exchange.task_files import _for_hadoop

SHORT, LONG = "abfs://c/work", "abfss://c@lake.dfs.core.windows.net/work"
KEY = "AccountName=lake;AccountKey=aGlkZGVu=="


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCOUNT_NAME", "ACCOUNT_KEY", "SAS_TOKEN", "CONNECTION_STRING", "CLIENT_ID"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)


@pytest.mark.parametrize(
    ("uri", "options", "settings"),
    [
        (LONG, {}, {"account_name": "lake"}),
        (SHORT, {"account_name": "lake", "account_key": "k"}, {"account_name": "lake", "account_key": "k"}),
        (LONG, {"sas_token": "sv=1&sig=x"}, {"account_name": "lake", "sas_token": "?sv=1&sig=x"}),
        (LONG, {"sas_token": "?sig=x"}, {"account_name": "lake", "sas_token": "?sig=x"}),
        (LONG, {"client_id": "i"}, {"account_name": "lake", "client_id": "i"}),
        (
            LONG,
            {"client_id": "i", "tenant_id": "t", "client_secret": "s"},
            {"account_name": "lake", "client_id": "i", "tenant_id": "t", "client_secret": "s"},
        ),
        (LONG, {"account_key": "k", "sas_token": "?sig=x"}, {"account_name": "lake", "account_key": "k"}),
        (SHORT, {"connection_string": KEY}, {"account_name": "lake", "account_key": "aGlkZGVu=="}),
        (
            SHORT,
            {"connection_string": f"{KEY};EndpointSuffix=core.windows.net", "account_key": "other"},
            {
                "account_name": "lake",
                "account_key": "aGlkZGVu==",
                "blob_storage_authority": ".blob.core.windows.net",
                "dfs_storage_authority": ".dfs.core.windows.net",
            },
        ),
        (
            SHORT,
            {
                "connection_string": "BlobEndpoint=https://lake.blob.core.chinacloudapi.cn/;SharedAccessSignature=sig=x"
            },
            {
                "account_name": "lake",
                "sas_token": "?sig=x",
                "blob_storage_authority": ".blob.core.chinacloudapi.cn",
                "dfs_storage_authority": ".dfs.core.chinacloudapi.cn",
            },
        ),
        (
            SHORT,
            {"connection_string": f"{KEY};BlobEndpoint=http://127.0.0.1:10000/lake;"},
            {
                "account_name": "lake",
                "account_key": "aGlkZGVu==",
                **dict.fromkeys(("blob_storage_authority", "dfs_storage_authority"), "127.0.0.1:10000"),
                **dict.fromkeys(("blob_storage_scheme", "dfs_storage_scheme"), "http"),
            },
        ),
        ("gs://b/work", {}, {}),
        ("gs://b/work", {"token": "google_default", "project": "p"}, {"project_id": "p"}),
        (
            "gs://b/work",
            {"token": "anon", "endpoint_url": "http://127.0.0.1:9023"},
            {"anonymous": "true", "endpoint_override": "127.0.0.1:9023", "scheme": "http"},
        ),
    ],
)
def test_pyarrow_is_told_what_fsspec_is_told(
    uri: str, options: dict[str, str], settings: dict[str, str]
) -> None:
    folder = remote_folder(uri, options)
    assert dict(folder.settings) == settings
    assert folder.uri == uri
    assert not any(secret in repr(folder) for secret in ("aGlkZGVu", "sig=", "client_secret"))


def test_what_fsspec_finds_in_the_environment_executors_get_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "lake")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "k")
    assert dict(remote_folder(SHORT, {}).settings) == {"account_name": "lake", "account_key": "k"}
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", KEY.replace("lake", "other"))
    assert dict(remote_folder(SHORT, {}).settings)["account_name"] == "other"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "localhost:4443")
    assert dict(remote_folder("gs://b/work", {}).settings) == {
        "endpoint_override": "localhost:4443",
        "scheme": "http",
    }


@pytest.mark.parametrize(
    ("uri", "options", "says"),
    [
        (SHORT, {}, "does not say in which account its container is: write abfss://container@account"),
        (LONG, {"anon": "true"}, "storage_options has 'anon', which executors cannot use"),
        (LONG, {"account_host": "x"}, "they understand account_key, account_name, client_id"),
        (
            "gs://b/work",
            {"token": "/keys/hidden.json"},
            "GOOGLE_APPLICATION_CREDENTIALS, on the driver and on",
        ),
        ("gs://b/work", {"consistency": "md5"}, "storage_options has 'consistency'"),
    ],
)
def test_what_executors_cannot_use_is_refused(uri: str, options: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as caught:
        remote_folder(uri, options)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "options", "hadoop"),
    [
        ("s3://b/work", {}, "s3a://b/work"),
        ("s3a://b/work", {}, "s3a://b/work"),
        ("gs://b/work", {}, "gs://b/work"),
        (LONG, {}, LONG),
        (SHORT, {"account_name": "lake"}, "abfs://c@lake.dfs.core.windows.net/work"),
        ("abfss://c", {"account_name": "lake"}, "abfss://c@lake.dfs.core.windows.net"),
        (
            SHORT,
            {"connection_string": f"{KEY};EndpointSuffix=core.usgovcloudapi.net"},
            "abfs://c@lake.dfs.core.usgovcloudapi.net/work",
        ),
    ],
)
def test_sparks_connector_is_told_in_its_own_words(uri: str, options: dict[str, str], hadoop: str) -> None:
    assert _for_hadoop(remote_folder(uri, options)) == hadoop
