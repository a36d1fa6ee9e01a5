"""The object store of a Delta table, as pyarrow is told of it in delta-rs's words."""

from __future__ import annotations

import pytest

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.delta.remote import open_store

KEY = "aGlkZGVuaGlkZGVu"
URI = "abfss://c@lake.dfs.core.windows.net/tables/orders"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCOUNT_NAME", "ACCOUNT_KEY", "SAS_TOKEN", "CONNECTION_STRING", "CLIENT_ID", "ENDPOINT"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)


@pytest.mark.parametrize("word", ["azure_storage_account_key", "AZURE_STORAGE_ACCESS_KEY", "account_key"])
@pytest.mark.parametrize("uri", [URI, "az://c/tables/orders", "abfs://c/tables/orders"])
def test_a_table_in_azure_is_reached_with_delta_rs_options(uri: str, word: str) -> None:
    store, path = open_store(uri, {"azure_storage_account_name": "lake", word: KEY})
    [told] = store.__reduce__()[1]
    assert path == "c/tables/orders"
    assert (told["account_name"], told["account_key"]) == ("lake", KEY)
    assert told["blob_storage_authority"] == ".blob.core.windows.net"


def test_an_endpoint_of_its_own_and_the_environment_are_honored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    store, _ = open_store(
        URI, {"azure_storage_endpoint": "http://127.0.0.1:10000/lake", "account_name": "lake"}
    )
    [told] = store.__reduce__()[1]
    assert (told["blob_storage_authority"], told["blob_storage_scheme"]) == ("127.0.0.1:10000", "http")
    assert told["account_key"] == KEY


def test_a_table_whose_account_nobody_names_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="table az://c/t does not say in which account"):
        open_store("az://c/t", {})


@pytest.mark.parametrize("prefix", ["google_", "GOOGLE_", ""])
def test_a_table_in_google_s_storage_is_reached_with_delta_rs_options(prefix: str) -> None:
    options = {"google_base_url": "http://127.0.0.1:4443", "google_skip_signature": "true"}
    spelt = {name.replace("google_", prefix): value for name, value in options.items()}
    store, path = open_store("gs://lake/tables/orders", spelt)
    [told] = store.__reduce__()[1]
    assert path == "lake/tables/orders"
    assert (told["endpoint_override"], told["scheme"], told["anonymous"]) == ("127.0.0.1:4443", "http", True)


def test_a_key_that_stands_for_an_emulator_is_no_key() -> None:
    key = '{"gcs_base_url": "http://127.0.0.1:4443", "disable_oauth": true, "private_key": ""}'
    store, _ = open_store("gs://lake/tables/orders", {"google_service_account_key": key})
    [told] = store.__reduce__()[1]
    assert (told["endpoint_override"], told["anonymous"]) == ("127.0.0.1:4443", True)


@pytest.mark.parametrize(
    "options",
    [
        {"google_service_account": "/keys/lake.json"},
        {"SERVICE_ACCOUNT_PATH": "/keys/lake.json"},
        {"google_application_credentials": "/keys/lake.json"},
        {"google_service_account_key": '{"private_key": "hidden"}'},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_key_that_pyarrow_cannot_take_is_refused_and_not_shown(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows would be staged as whoever else the environment names, or as nobody."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/keys/other.json")
    with pytest.raises(
        InvalidRequest, match="GOOGLE_APPLICATION_CREDENTIALS, which delta-rs reads"
    ) as caught:
        open_store("gs://lake/tables/orders", options)
    assert "hidden" not in str(caught.value)
