"""No secret is shown anywhere: not by a run that fails, not by definitions, not by Spark."""

from __future__ import annotations

import logging
import pickle
import sys
import traceback
from collections.abc import Iterator, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.remote_representation.external_data import RepositorySnap
from dagster._core.snap import JobSnap
from fsspec.implementations.memory import MemoryFileSystem

from dagster_delta import (
    DeltaIOManager,
    DeltaTable,
    DeltaTableResource,
    SparkSessionResource,
    delta_asset_checks,
    delta_change_feed_sensor,
    delta_clone_job,
    delta_maintenance_job,
    delta_restore_job,
    delta_schema_change_job,
    delta_table_sensor,
    observable_delta_asset,
)
from dagster_delta.errors import DataFileMissing, DeltaError, InvalidArgument
from dagster_delta.orchestration.storage_options import (
    AzureStorageOptions,
    FsspecStorageOptions,
    GcsStorageOptions,
    S3StorageOptions,
)
from dagster_delta.storage import open_store
from dagster_delta.storage.cloud import client, requests
from tests.orchestration.conftest import QUIET

SECRET = "hush-hush"

STORES: Mapping[str, Any] = MappingProxyType(
    {
        "s3://bucket/lake": S3StorageOptions(
            access_key_id=SECRET,
            secret_access_key=SECRET,
            session_token=SECRET,
            endpoint=f"http://user:{SECRET}@127.0.0.1:9",
            region="us-east-1",
        ),
        "gs://bucket/lake": GcsStorageOptions(
            bearer_token=SECRET, endpoint=f"http://user:{SECRET}@127.0.0.1:9"
        ),
        "az://container/lake": AzureStorageOptions(
            account_name="account",
            sas_key=f"sv=1&sig={SECRET}",
            endpoint=f"http://user:{SECRET}@127.0.0.1:9/account",
        ),
        "talkative://lake": FsspecStorageOptions(
            extra={"token": SECRET, "client_kwargs": {"password": SECRET}}
        ),
    }
)


class TalkativeFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """Fails with all it knows, as clients of storage do."""

    protocol = "talkative"
    cachable = False

    def _fail(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError(f"403 for https://h/?sig={SECRET} as {self.storage_options}")

    cat_file = ls = info = find = isfile = open = _fail


@pytest.fixture(autouse=True)
def talkative(monkeypatch: pytest.MonkeyPatch) -> None:
    """That file system, and the clouds without their waits."""
    registered = sys.modules["fsspec.registry"]._registry
    monkeypatch.setitem(registered, "talkative", TalkativeFileSystem)
    for name, value in (("_RETRIES", 0), ("_FIRST_PAUSE", timedelta(milliseconds=1))):
        monkeypatch.setattr(client, name, value)
    monkeypatch.setattr(requests, "_ATTEMPTS", 1)


def shown_by(error: BaseException | None) -> Iterator[str]:
    """What anybody who prints, logs or sends on an error may show of it."""
    if error is None:
        return
    yield from ("".join(traceback.format_exception(error)), repr(error), str(error))
    while error is not None:
        yield repr(error.args)
        yield repr(vars(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


@pytest.mark.parametrize("root", STORES)
def test_a_run_that_fails_shows_none(root: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="dagster")
    caplog.set_level(logging.DEBUG, logger="dagster_delta")

    @dg.asset
    def events() -> pa.Table:
        return pa.table({"id": [1]})

    @dg.asset
    def reader(events: pa.Table) -> None:
        del events

    manager = DeltaIOManager(root_uri=root, storage_options=STORES[root])
    with dg.DagsterInstance.ephemeral() as instance:
        runs: list[list[Any]] = [[events], [reader, dg.AssetSpec("events")]]
        for selected in runs:
            result = dg.materialize(
                selected,
                instance=instance,
                resources={"io_manager": manager},
                run_config=QUIET,
                raise_on_error=False,
            )
            assert not result.success
            entries = instance.all_logs(result.run_id)
            stored = "".join(dg.serialize_value(entry) for entry in entries)
            stored += str(instance.get_run_by_id(result.run_id))
            assert "StorageFailure" in stored or "read-only" in stored
            failures = [e for e in entries if e.dagster_event and e.dagster_event.is_step_failure]
            assert failures
            for entry in failures:
                assert entry.dagster_event is not None
                assert SECRET not in str(entry.dagster_event.step_failure_data)
            messages = "".join(entry.message + entry.user_message for entry in entries)
            assert SECRET not in messages
    assert SECRET not in caplog.text


@pytest.mark.parametrize("root", STORES)
def test_an_error_of_the_storage_shows_none(root: str) -> None:
    calls = (
        lambda store: store.read("_delta_log/x"),
        lambda store: store.head("x"),
        lambda store: list(store.list_from("_delta_log")),
        lambda store: list(store.list_recursive()),
        lambda store: store.open_input("x"),
        lambda store: store.put_if_absent("_delta_log/x", b""),
    )
    store = open_store(root, STORES[root].to_options())
    assert SECRET not in f"{store!r} {store.location!r}"
    for call in calls:
        with pytest.raises(DeltaError) as caught:
            call(store)
        for text in shown_by(caught.value):
            assert SECRET not in text
        assert SECRET.encode() not in pickle.dumps(caught.value)


def test_a_key_that_is_no_json_is_an_error_that_does_not_hold_it() -> None:
    options = GcsStorageOptions(service_account_key=f"{{{SECRET}")
    with pytest.raises(InvalidArgument, match="service_account_key") as caught:
        open_store("gs://bucket/t", options.to_options())
    for text in shown_by(caught.value):
        assert SECRET not in text
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    "uri",
    [
        f"ftp://user:{SECRET}@host/t",
        f"s3://AKIA:{SECRET}@bucket/t",
        f"s3://AKIA:abc/{SECRET}@bucket/t",
        f"https://account.example/c/t?sv=1&sig={SECRET}",
        f"abfss://c@account.example/t?se=1&SIG={SECRET}&sp=r",
        f"az://c/t?sas_token={SECRET}",
        f"gs://b/t?X-Goog-Signature={SECRET}",
        f"s3://b/t?X-Amz-Security-Token={SECRET}",
        f"https://{SECRET}@host/t",
    ],
)
def test_a_location_with_a_secret_in_it_is_refused_without_it(uri: str) -> None:
    with pytest.raises(InvalidArgument, match="storage options") as caught:
        DeltaTable(uri)
    for text in shown_by(caught.value):
        assert SECRET not in text


@pytest.mark.parametrize("uri", [f"s3://AKIA:{SECRET}@bucket/t", f"az://c/t?sas_token={SECRET}"])
def test_a_resource_is_not_made_of_a_location_with_a_secret_in_it(uri: str) -> None:
    for make in (
        lambda: DeltaIOManager(root_uri=uri),
        lambda: DeltaTableResource(uri=uri),
        lambda: DeltaTableResource(root_uri=uri, name="t"),
    ):
        with pytest.raises(InvalidArgument, match="storage options") as caught:
            make()
        for text in shown_by(caught.value):
            assert SECRET not in text


@pytest.mark.parametrize(
    "uri", ["s3://b/what?/t", "s3://b/a=b?c=d", "hdfs://host:8020/a@b:c/t", "abfss://c@a.example/t"]
)
def test_other_odd_locations_are_none(uri: str) -> None:
    from dagster_delta.storage.locations import holds_password

    assert not holds_password(uri)


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (f"https://a.example/c/f.parquet?sv=1&sig={SECRET}&se=2", "f.parquet?sv=1&sig=***&se=2"),
        (f"s3://id:{SECRET}@bucket/f.parquet", "s3://***@bucket/f.parquet"),
        ("p=a%3Ab@c/f.parquet", "p=a%3Ab@c/f.parquet"),
    ],
)
def test_an_error_about_a_file_of_the_log_hides_the_secrets_of_its_path(
    path: str, shown: str
) -> None:
    error = DataFileMissing("the file is gone", table="t", file=path)
    assert shown in str(error)
    for text in shown_by(error):
        assert SECRET not in text


def test_definitions_show_none() -> None:
    azure = STORES["az://container/lake"]
    secret_key = dg.EnvVar("SOME_SECRET")
    uri = "az://container/lake/t"
    tables = {"t": uri}
    target = dg.AssetSelection.all()
    definitions = dg.Definitions(
        assets=[
            dg.asset(name="x")(lambda: 1),
            observable_delta_asset("o", uri, storage_options=azure),
        ],
        asset_checks=delta_asset_checks("x", table=uri, storage_options=azure),
        jobs=[
            make(tables=tables, storage_options=azure)
            for make in (
                delta_maintenance_job,
                delta_schema_change_job,
                delta_restore_job,
                delta_clone_job,
            )
        ],
        sensors=[
            delta_table_sensor("s", uri, storage_options=azure, target=target),
            delta_change_feed_sensor("f", uri, storage_options=azure, target=target),
        ],
        resources={
            "io_manager": DeltaIOManager(
                root_uri="az://container/lake",
                storage_options=AzureStorageOptions(
                    account_key=secret_key, sas_key=secret_key, connection_string=secret_key
                ),
            ),
            "gcs": DeltaTableResource(
                uri="gs://b/t", storage_options=GcsStorageOptions(service_account_key=secret_key)
            ),
            "spark": SparkSessionResource(remote=secret_key),
        },
    )
    repository = definitions.get_repository_def()
    snaps: list[Any] = [RepositorySnap.from_def(repository)]
    snaps += [JobSnap.from_job_def(job) for job in repository.get_all_jobs()]
    for snap in snaps:
        assert SECRET not in dg.serialize_value(snap)


@pytest.mark.parametrize("root", STORES)
def test_resources_show_none(root: str) -> None:
    options = STORES[root]
    spark = SparkSessionResource(remote=f"sc://h/;token={SECRET}", conf={"a.secret": SECRET})
    resources = [
        options,
        DeltaIOManager(root_uri=root, storage_options=options, spark=spark),
        DeltaTableResource(uri=root, storage_options=options),
        spark,
    ]
    for resource in resources:
        assert SECRET not in f"{resource!r} {resource}"


PROJECT_OPTIONS = {
    name: f"{SECRET}-{name}"
    for name in (
        *("access_key_id", "secret_access_key", "session_token", "key", "secret", "token"),
        *("account_key", "sas_token", "sas_key", "connection_string", "client_secret"),
        *("service_account_key", "password"),
    )
}


@pytest.mark.spark
def test_the_plans_and_progress_of_spark_show_none(spark, tmp_path, capfd) -> None:
    from dagster_delta import delta_sink, register_delta_log

    uri = str(tmp_path / "t")
    table = DeltaTable(uri, storage_options=PROJECT_OPTIONS, must_exist=False)
    table.append(spark.range(5))
    prefixed = {f"storage.{name}": value for name, value in PROJECT_OPTIONS.items()}
    register_delta_log(spark)
    options = ", ".join(f"'{name}' '{value}'" for name, value in prefixed.items())
    view = f"CREATE OR REPLACE TEMPORARY VIEW v USING delta_log OPTIONS (path '{uri}', {options})"
    shown = [str(spark.sql(f"EXPLAIN EXTENDED {view}").collect())]
    spark.sql(view)
    frames = [
        table.snapshot().scan(where="id > 1").to_spark(spark),
        spark.read.format("delta_log").options(**prefixed).load(uri),
        spark.table("v"),
    ]
    for frame in frames:
        for mode in ("extended", "formatted", "cost"):
            frame.explain(mode=mode)
        shown.append(repr(frame))
    shown.append(str(spark.sql("DESCRIBE EXTENDED v").collect()))
    query = (
        spark.readStream.format("delta_log")
        .options(**prefixed)
        .load(uri)
        .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .foreachBatch(
            delta_sink(str(tmp_path / "u"), query_id="q", storage_options=PROJECT_OPTIONS)
        )
        .start()
    )
    query.awaitTermination()
    query.explain(extended=True)
    shown += [str(query.lastProgress), str(query.status), *capfd.readouterr()]
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path
    for text in shown:
        assert SECRET not in text


@pytest.mark.spark
def test_a_failure_in_a_task_of_spark_shows_none(spark, tmp_path, capfd) -> None:
    table = DeltaTable(tmp_path / "t", storage_options=PROJECT_OPTIONS, must_exist=False)
    table.append(spark.range(5))
    with pytest.raises(DeltaError) as caught:
        table.append(spark.range(5).selectExpr("CAST(id AS STRING) || 'x' AS id"))
    found = list(shown_by(caught.value))
    for path in (tmp_path / "t").glob("*.parquet"):
        path.unlink()
    with pytest.raises(Exception) as caught_read:
        table.snapshot().scan().to_spark(spark).collect()
    found += [*shown_by(caught_read.value), *capfd.readouterr()]
    for text in found:
        assert SECRET not in text
