"""A shop, from CSV files to a report: landing files, bronze, silver, history, gold, checks."""

# No `from __future__ import annotations`: Dagster compares the annotation of `context` itself.

import datetime as dt
import os
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta import (
    DeltaIOManager,
    check_definitions,
    delta_asset_checks,
    delta_change_feed_asset,
    delta_files_asset,
    delta_files_sensor,
    delta_health_asset,
    delta_maintenance_schedule,
    delta_sql_asset,
)

HERE = Path(__file__).parent
LAKE = os.environ.get("SHOP_LAKE", str(HERE / "lake"))
LANDING = os.environ.get("SHOP_LANDING", str(HERE / "landing"))
CHANGES = {"delta.enableChangeDataFeed": "true"}

# Bronze: the files as they came, each loaded once.
customer_files = delta_files_asset(
    "customer_files",
    f"{LANDING}/customers/*.csv",
    columns={"id": "bigint", "name": "string", "city": "string"},
    key_prefix=["bronze"],
    metadata={"table_properties": CHANGES},
)
order_files = delta_files_asset(
    "order_files",
    f"{LANDING}/orders/*.csv",
    columns={"id": "bigint", "customer": "bigint", "day": "date", "amount": "decimal(10,2)"},
    key_prefix=["bronze"],
    metadata={"table_properties": CHANGES},
)


# Silver: one row for each key, the newest. A run reads the rows that are new in bronze.
@delta_change_feed_asset(
    customer_files,
    keys=["id"],
    returns="rows",
    key_prefix=["silver"],
    metadata={"table_properties": CHANGES},
)
def customers(changes: pa.Table) -> pa.Table:
    """The customers as they are now."""
    return newest(changes).drop_columns(["_change_type", "_commit_version", "_commit_timestamp"])


@delta_change_feed_asset(order_files, keys=["id"], returns="rows", key_prefix=["silver"])
def orders(changes: pa.Table) -> pa.Table:
    """The orders; one that was sent twice is here once."""
    return newest(changes).drop_columns(["_change_type", "_commit_version", "_commit_timestamp"])


def newest(changes: pa.Table) -> pa.Table:
    """The last row of each id."""
    ordered = changes.append_column("row", pa.array(range(len(changes))))
    last = ordered.group_by("id").aggregate([("row", "max")])["row_max"]
    return changes.take(last.combine_chunks())


# History: every state that a customer has had. Changes are added, and no row is ever rewritten.
@delta_change_feed_asset(customers, mode="append", on_gap="fail", key_prefix=["silver"])
def customer_changes(changes: pa.Table) -> pa.Table:
    """The rows of the customers after each change, and those that were deleted."""
    return changes.filter(pc.not_equal(changes["_change_type"], "update_preimage"))


# A slowly changing dimension of type 2: a row is valid until the next change of its key.
customer_history = delta_sql_asset(
    "customer_history",
    """
    WITH last_of_commits AS (
        -- A commit that replaces a row deletes it, too.
        SELECT *, max(_change_type <> 'delete') OVER (PARTITION BY id, _commit_version) AS remains
        FROM {changes}
    ), states AS (
        SELECT *, lag((name, city)) OVER of_customer AS before,
            lag(_change_type) OVER of_customer AS change_before
        FROM last_of_commits WHERE _change_type <> 'delete' OR NOT remains
        WINDOW of_customer AS (PARTITION BY id ORDER BY _commit_version)
    ), changed AS (
        -- A row that was written again as it was is no new state.
        SELECT * FROM states
        WHERE before IS DISTINCT FROM (name, city) OR _change_type = 'delete'
            OR change_before = 'delete'
    ), ended AS (
        SELECT *, lead(_commit_timestamp) OVER (PARTITION BY id ORDER BY _commit_version) AS until
        FROM changed
    )
    SELECT id, name, city, _commit_timestamp AS valid_from, until AS valid_to,
        until IS NULL AS is_current
    FROM ended WHERE _change_type <> 'delete'
    """,
    {"changes": customer_changes},
    key_prefix=["gold"],
)

# Gold: what the shop asks.
sales_by_city = delta_sql_asset(
    "sales_by_city",
    """
    SELECT o.day, c.city, count(*) AS orders, sum(o.amount) AS amount
    FROM {orders} o JOIN {customers} c ON o.customer = c.id
    GROUP BY o.day, c.city
    """,
    {"orders": orders, "customers": customers},
    key_prefix=["gold"],
)

assets = [
    customer_files,
    order_files,
    customers,
    orders,
    customer_changes,
    customer_history,
    sales_by_city,
]
everything = dg.define_asset_job("shop", dg.AssetSelection.assets(*assets))
nightly = delta_maintenance_schedule("nightly", "0 3 * * *", assets=assets)

defs = check_definitions(
    dg.Definitions(
        assets=[*assets, delta_health_asset("lake_health", assets=assets)],
        asset_checks=[
            *delta_asset_checks(customers, unique=["id"], row_count=(1, None)),
            *delta_asset_checks(orders, unique=["id"], freshness=dt.timedelta(days=1)),
            *delta_asset_checks(customer_history, unique=["id", "valid_from"]),
        ],
        jobs=[everything],
        schedules=[nightly],
        sensors=[delta_files_sensor("orders_arrive", f"{LANDING}/orders/*.csv", target=everything)],
        resources={"io_manager": DeltaIOManager(root_uri=LAKE)},
    )
)
