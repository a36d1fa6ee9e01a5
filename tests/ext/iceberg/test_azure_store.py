"""The container of an Iceberg table, as pyarrow is told of it in PyIceberg's words."""

from __future__ import annotations

import pytest

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.iceberg.backend import azure_store

KEY = "aGlkZGVuaGlkZGVu"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCOUNT_NAME", "ACCOUNT_KEY", "SAS_TOKEN", "CONNECTION_STRING", "CLIENT_ID"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)


@pytest.mark.parametrize(
    ("location", "properties"),
    [
        ("abfs://c/db/t", {"adls.account-name": "lake", "adls.account-key": KEY}),
        ("abfs://c/db/t", {"adls.connection-string": f"AccountName=lake;AccountKey={KEY}", "s3.region": "x"}),
        ("abfss://c@lake.dfs.core.windows.net/db/t", {"adls.account-key": KEY}),
    ],
)
def test_a_table_is_reached_with_the_catalogs_properties(location: str, properties: dict[str, str]) -> None:
    store, path = azure_store(location, properties)
    [told] = store.__reduce__()[1]
    assert path == "c/db/t"
    assert (told["account_name"], told["account_key"]) == ("lake", KEY)


def test_a_table_whose_account_nobody_names_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="the table at abfs://c/t does not say in which account"):
        azure_store("abfs://c/t", {})
