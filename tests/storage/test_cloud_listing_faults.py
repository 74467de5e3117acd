"""A listing of more keys than one answer holds, of which the second answer fails."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from dagster_delta.errors import StorageFailure
from dagster_delta.storage import open_store
from tests.storage.conftest import CLOUDS, Cloud
from tests.storage.failing_endpoint import Way

KEYS = {"s3": 11, "azure": 1001, "google": 1001}
"""One more than an answer holds. An emulator in this process takes seconds for a thousand."""
SHORT: tuple[Way, ...] = ("429 Busy", "503 SlowDown", "reset", "cut", "drip")
LONG: tuple[Way, ...] = ("503 SlowDown", "reset", "cut", "unfinished page")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("cloud", "keys"), KEYS.items(), indirect=["cloud"], ids=CLOUDS)
def test_a_listing_is_whole_or_a_failure(
    cloud: Cloud, keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", str(keys - 1))
    uri = f"{cloud.uri}/t"
    filled = open_store(uri, cloud.sound)
    names = [f"x/{number:04d}" for number in range(keys)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: filled.put(name, b"x"), names))
    store = open_store(uri, cloud.failing)
    # The first answer of a test server may hold all of them.
    cloud.endpoint.seen = []
    assert [meta.path for meta in store.list_from("x")] == names
    listings = [path for method, path in cloud.endpoint.seen if method == "GET"]
    assert len(listings) == 2 or keys > 1000
    for way in SHORT:
        with cloud.endpoint.failing("GET", "list", way, times=1) as asked:
            assert [meta.path for meta in store.list_from("x")] == names
        assert asked
    for step in range(len(listings)):
        for way in LONG:
            with (
                cloud.endpoint.failing("", "", way, passed=step),
                pytest.raises(StorageFailure) as caught,
            ):
                list(store.list_from("x"))
            assert caught.value.table == uri
