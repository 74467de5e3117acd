"""A listing of more keys than one answer holds, of which the second answer fails."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from dagster_delta.errors import StorageFailure
from dagster_delta.storage import open_store
from tests.storage.conftest import CLOUDS, Cloud
from tests.storage.failing_endpoint import Way

SHORT: tuple[Way, ...] = ("429 Busy", "503 SlowDown", "reset", "cut", "drip")
LONG: tuple[Way, ...] = ("503 SlowDown", "reset", "cut", "unfinished page")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("cloud", CLOUDS, indirect=True)
def test_a_listing_is_whole_or_a_failure(cloud: Cloud, request: pytest.FixtureRequest) -> None:
    is_here = cloud.uri.startswith("s3:")
    keys = 1 + (request.getfixturevalue("short_answers") if is_here else 1000)
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
    assert len(listings) == 2 or not is_here
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
