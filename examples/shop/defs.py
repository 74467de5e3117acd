"""A shop, from CSV files to a report: landing files, bronze, silver, history, gold, checks."""

# No `from __future__ import annotations`: Dagster compares the annotation of `context` itself.

import datetime as dt
import os
from pathlib import Path

import dagster as dg
import pyarrow as pa

from dagster_delta import (
    DeltaIOManager,
    Expectation,
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
    columns={
        "id": "bigint",
        "name": "string",
        "city": "string",
        "changed_at": "timestamp",
        "op": "string",
    },
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

# Silver: the events of the files, in whatever order they came, become the customers as they are.
EVENTS = {
    "sequence_by": "changed_at",
    "apply_as_deletes": "op = 'D'",
    "except_column_list": ["op"],
}


@delta_change_feed_asset(
    customer_files,
    keys=["id"],
    mode="auto_cdc",
    key_prefix=["silver"],
    metadata={"merge_config": EVENTS},
)
def customers(changes: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """The customers as they are now."""
    return changes


@delta_change_feed_asset(
    order_files,
    keys=["id"],
    returns="rows",
    key_prefix=["silver"],
    metadata={
        "expectations": [
            Expectation("positive", "amount > 0", on_violation="quarantine"),
            Expectation("has_customer", "customer IS NOT NULL"),
        ]
    },
)
def orders(changes: pa.Table) -> pa.Table:
    """The orders; one that was sent twice is here once, and one without an amount is set aside."""
    ordered = changes.append_column("row", pa.array(range(len(changes))))
    last = ordered.group_by("id").aggregate([("row", "max")])["row_max"]
    newest = changes.take(last.combine_chunks())
    return newest.drop_columns(["_change_type", "_commit_version", "_commit_timestamp"])


# A slowly changing dimension of type 2: a row for each state that a customer has had.
@delta_change_feed_asset(
    customer_files,
    keys=["id"],
    mode="auto_cdc",
    key_prefix=["gold"],
    metadata={
        "merge_config": {
            **EVENTS,
            "except_column_list": ["op", "changed_at"],
            "stored_as_scd_type": 2,
            "start_at": "valid_from",
            "end_at": "valid_to",
        }
    },
)
def customer_history(changes: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """The states of the customers, by the time of the source."""
    return changes


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
