"""Azure, played by Azurite: rows and state of a working directory there, and machines that come with an empty disk.

What storages promise is in ``tests/contract``, which runs on Azurite too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_ckpt.adapters.fsspec_storage import open_storage
from dagster_ckpt.errors import InvalidRequest, Unavailable
from dagster_ckpt.spark.exchange.mounts import mount, prove_reached
from dagster_ckpt.spark.exchange.options import remote_folder
from tests.adapters.clouds import ACCOUNT, KEY, AzureServer
from tests.adapters.servers import PostgresCluster
from tests.spark.cluster.apart import a_stream_dies_with_its_disk_and_an_epoch_goes_on
from tests.spark.cluster.standalone import StandaloneCluster
from tests.spark.epoch.small_pipeline import Feed
from tests.spark.exchange.places import rows_come_and_go
from tests.spark.lake.deployment import Places
from tests.spark.lake.empty_disks import go_from_empty_disk_to_empty_disk

pytestmark = pytest.mark.platform


@pytest.mark.parametrize(
    "uri",
    [
        "abfs://{}/work",
        f"abfss://{{}}@{ACCOUNT}.dfs.core.windows.net/work",
        f"abfs://{{}}@{ACCOUNT}.blob.core.windows.net/work/deeper",
    ],
)
def test_rows_written_by_a_task_are_listed_and_deleted_by_the_driver(
    azure: AzureServer, tmp_path: Path, uri: str
) -> None:
    uri = uri.format(azure.new_container())
    rows_come_and_go(uri, azure.options, tmp_path / "scratch")


def test_a_signature_is_enough_for_driver_and_tasks(azure: AzureServer, tmp_path: Path) -> None:
    uri = f"abfs://{azure.new_container()}/work"
    for token in (azure.signature(), f"?{azure.signature()}"):
        endpoint = f"BlobEndpoint=http://{azure.address}/{ACCOUNT};AccountName={ACCOUNT}"
        options = {"connection_string": f"{endpoint};SharedAccessSignature={token}"}
        remote, storage = remote_folder(uri, options), open_storage(uri, **options)
        with remote.write("here") as stream:
            stream.write(b"content")
        assert storage.read("here") == remote.read("here") == b"content"
        storage.delete(["here"])


def test_wrong_and_weak_credentials_are_told_and_not_shown(azure: AzureServer, tmp_path: Path) -> None:
    uri = f"abfs://{azure.new_container()}/base"
    wrong, weak = KEY.replace("Eby8", "Abc9"), azure.signature(write=False)
    endpoint = f"BlobEndpoint=http://{azure.address}/{ACCOUNT};AccountName={ACCOUNT}"
    for connection, secret in (
        (azure.connection_string.replace(KEY, wrong), wrong),
        (f"{endpoint};SharedAccessSignature={weak}", weak.partition("sig=")[2].partition("%")[0]),
    ):
        options = {"connection_string": connection}
        storage = open_storage(uri, **options)
        with pytest.raises(Unavailable, match="check the permissions or credentials") as caught:
            storage.create("p/file", b"content")
        with pytest.raises(InvalidRequest, match=r"work_dir \(abfs://.*\) cannot be used") as refused:
            prove_reached(
                mount(tmp_path / str(len(secret)), remote_folder(uri, options), storage), "work_dir"
            )
        assert secret not in f"{caught.value} {refused.value} {storage!r} {remote_folder(uri, options)!r}"
        assert "\n" not in f"{caught.value} {refused.value}"


def test_a_container_or_account_that_is_not_there_is_told(azure: AzureServer) -> None:
    storage = open_storage("abfs://nobody/x", **azure.options)
    with pytest.raises(Unavailable, match="bucket or folder exists"):
        storage.create("p/file", b"content")
    assert list(storage.list("")) == []
    with pytest.raises(InvalidRequest, match="Connection string is either blank or malformed"):
        open_storage("abfs://nobody/x", connection_string="nothing").read("key")
    other = "abfs://c@other.dfs.core.windows.net/x"
    with pytest.raises(InvalidRequest, match="account_name"):
        open_storage(other, account_name=ACCOUNT, account_key=KEY).read("key")


# --- everything there ---------------------------------------------------------------------------------------------


@pytest.fixture
def places(feed: Feed, postgres_server: PostgresCluster, azure: AzureServer) -> Places:
    return Places.new(feed.folder, postgres_server, azure).all_in_the_bucket


def test_epochs_and_a_stream_go_from_empty_disk_to_empty_disk(
    tmp_path: Path, feed: Feed, places: Places
) -> None:
    go_from_empty_disk_to_empty_disk(tmp_path, places, feed)


def test_executors_without_a_shared_disk_hand_rows_and_state_over_there(
    cluster: StandaloneCluster, tmp_path: Path, feed: Feed, places: Places
) -> None:
    a_stream_dies_with_its_disk_and_an_epoch_goes_on(cluster, tmp_path, places, feed)
