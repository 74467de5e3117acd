"""A server of Unity Catalog in the memory of the test: the Delta API 1.0 with every refusal of its
specification, and what the older API needs for names, lists and credentials.

It is stricter than the real one where a client has a duty that servers need not check: it reads the
staged commits, and refuses a commit whose changes the request does not mirror, and a report of
versions that are not published.

Source: `spec/protocols/ManagedTablesSpec.md` and `api/delta.yaml` of unitycatalog/unitycatalog.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
import urllib.parse
import uuid
from base64 import b64decode
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

PREFIX = "/api/2.1/unity-catalog"
MAX_UNPUBLISHED = 10
REQUIRED_READER = ["catalogManaged", "deletionVectors", "v2Checkpoint", "vacuumProtocolCheck"]
REQUIRED_WRITER = [*REQUIRED_READER, "inCommitTimestamp"]
REQUIRED_PROPERTIES = {
    "delta.checkpointPolicy": "v2",
    "delta.enableDeletionVectors": "true",
    "delta.enableInCommitTimestamps": "true",
    "delta.checkpoint.writeStatsAsStruct": "true",
    "delta.checkpoint.writeStatsAsJson": "true",
}
SUGGESTED_PROPERTIES = {
    "delta.columnMapping.mode": "name",
    "delta.columnMapping.maxColumnId": None,
    "delta.enableRowTracking": "true",
    "delta.randomizeFilePrefixes": "true",
    "delta.parquet.compression.codec": "zstd",
    "delta.rowTracking.materializedRowIdColumnName": None,
    "delta.rowTracking.materializedRowCommitVersionColumnName": None,
}
SYNTHETIC = {
    "delta.minReaderVersion",
    "delta.minWriterVersion",
    "delta.lastUpdateVersion",
    "delta.lastCommitTimestamp",
    "delta.clusteringColumns",
    "delta.rowTracking.rowIdHighWaterMark",
}


class Refusal(Exception):
    """An error that the server answers with."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


def invalid(message: str) -> Refusal:
    return Refusal(400, "InvalidParameterValueException", message)


@dataclass
class Table:
    """One table, or a place for one."""

    name: str
    table_id: str
    location: str
    table_type: str
    columns: dict[str, Any] = field(default_factory=dict)
    partition_columns: list[str] = field(default_factory=list)
    properties: dict[str, str] = field(default_factory=dict)
    protocol: dict[str, Any] = field(default_factory=dict)
    domains: dict[str, Any] = field(default_factory=dict)
    comment: str | None = None
    owner: str = "someone"
    commits: dict[int, dict[str, Any]] = field(default_factory=dict)
    latest: int = 0
    last_update: tuple[int, int] = (0, 0)
    etag: int = 1
    format: str = "DELTA"
    allowed: list[str] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return Path(urllib.parse.urlsplit(self.location).path)

    @property
    def is_catalog_managed(self) -> bool:
        return "catalogManaged" in self.protocol.get("writer-features", [])

    def all_properties(self) -> dict[str, str]:
        """Its properties, and those that the catalog derives."""
        derived = {
            "delta.minReaderVersion": str(self.protocol.get("min-reader-version", 1)),
            "delta.minWriterVersion": str(self.protocol.get("min-writer-version", 1)),
            "delta.lastUpdateVersion": str(self.last_update[0]),
            "delta.lastCommitTimestamp": str(self.last_update[1]),
        }
        for feature in self.protocol.get("writer-features", []):
            derived[f"delta.feature.{feature}"] = "supported"
        if "delta.clustering" in self.domains:
            columns = self.domains["delta.clustering"]["clusteringColumns"]
            derived["delta.clusteringColumns"] = json.dumps(columns)
        if "delta.rowTracking" in self.domains:
            mark = self.domains["delta.rowTracking"]["rowIdHighWaterMark"]
            derived["delta.rowTracking.rowIdHighWaterMark"] = str(mark)
        return {**self.properties, **derived}

    def answer(self) -> dict[str, Any]:
        """The response to loading it."""
        found: dict[str, Any] = {
            "metadata": {
                "etag": f"etag-{self.etag}",
                "table-type": self.table_type,
                "table-uuid": self.table_id,
                "location": self.location,
                "created-time": 1,
                "updated-time": self.etag,
                "columns": self.columns,
                "partition-columns": self.partition_columns,
                "properties": self.all_properties(),
                "last-commit-version": self.last_update[0],
                "last-commit-timestamp-ms": self.last_update[1],
            }
        }
        if self.is_catalog_managed:
            newest_first = sorted(self.commits.values(), key=lambda c: -c["version"])
            found |= {"commits": newest_first, "latest-table-version": self.latest}
            found["allowed-maintenance-operations"] = self.allowed
        return found


@dataclass
class Fault:
    """What happens to a request instead of an answer."""

    method: str
    path_contains: str
    kind: str
    """`lose_reply`, `lose_request`, or `answer`."""
    body_contains: str = ""
    refusal: Refusal | None = None
    times: int = 1


class UnityServer:
    """The server, on a port of its own; `with` ends it."""

    def __init__(
        self,
        root: Path,
        *,
        tokens: set[str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.root = root
        self.lock = threading.RLock()
        self.schemas: dict[tuple[str, str], dict[str, Table]] = {}
        self.staging: dict[str, Table] = {}
        self.tokens = tokens
        self.clients: dict[str, str] = {}
        self.token_seconds = 3600.0
        self.issued: dict[str, float] = {}
        self.requests: Counter[str] = Counter()
        self.log: list[tuple[str, str, Any]] = []
        self.faults: list[Fault] = []
        self.credentials: Callable[[str, str], dict[str, Any]] | None = None
        self.location_root: str = f"file://{root}"
        self.has_delta_api = True
        self.allowed_maintenance: list[str] = []
        self.before_answer: Callable[[str, str], None] | None = None
        self.max_unpublished = MAX_UNPUBLISHED
        handler = type("Handler", (_Handler,), {"server_state": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        if tls is not None:
            # The handshake is done by the thread of each request.
            self._http.socket = tls.wrap_socket(
                self._http.socket, server_side=True, do_handshake_on_connect=False
            )
        scheme = "http" if tls is None else "https"
        self.uri = f"{scheme}://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.create_schema("main", "shop")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def create_schema(self, catalog: str, schema: str) -> None:
        self.schemas.setdefault((catalog, schema), {})

    def find(self, name: str) -> Table:
        """A table by its whole name."""
        catalog, schema, table = name.split(".")
        return self.tables_of(catalog, schema)[table]

    def tables_of(self, catalog: str, schema: str) -> dict[str, Table]:
        if (catalog, schema) not in self.schemas:
            raise Refusal(404, "NoSuchSchemaException", f"no schema {catalog}.{schema}")
        return self.schemas[catalog, schema]

    def count(self, prefix: str) -> int:
        """Requests whose method and path begin so."""
        return sum(n for what, n in self.requests.items() if what.startswith(prefix))

    # What each request does.

    def handle(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        with self.lock:
            if path.startswith("/delta/v1"):
                if not self.has_delta_api:
                    raise Refusal(404, "", "not found")
                return self._handle_delta(method, path[len("/delta/v1") :], query, body)
            return self._handle_older(method, path, query, body)

    def _handle_delta(
        self, method: str, path: str, query: dict[str, str], body: Any
    ) -> tuple[int, Any]:
        parts = [urllib.parse.unquote(part) for part in path.strip("/").split("/")]
        match [method, *parts]:
            case ["GET", "config"]:
                return 200, self._config(query)
            case ["GET", "staging-tables", table_id, "credentials"]:
                if table_id not in self.staging:
                    raise Refusal(404, "NoSuchTableException", f"no staging table {table_id}")
                return 200, self._credentials(self.staging[table_id].location, "READ_WRITE")
            case ["GET", "temporary-path-credentials"]:
                return 200, self._credentials(query["location"], "READ_WRITE")
            case ["POST", "catalogs", catalog, "schemas", schema, "staging-tables"]:
                return 200, self._stage_table(catalog, schema, body)
            case ["POST", "catalogs", catalog, "schemas", schema, "tables"]:
                return 200, self._create_table(catalog, schema, body)
        match [method, *parts]:
            case [_, "catalogs", catalog, "schemas", schema, "tables", name, *rest]:
                tables = self.tables_of(catalog, schema)
                if name not in tables:
                    raise Refusal(404, "NoSuchTableException", f"no table {name}")
                return self._handle_table(method, tables, tables[name], rest, query, body)
        raise Refusal(404, "NotFoundException", path)

    def _handle_table(
        self,
        method: str,
        tables: dict[str, Table],
        table: Table,
        rest: list[str],
        query: dict[str, str],
        body: Any,
    ) -> tuple[int, Any]:
        match [method, *rest]:
            case ["HEAD"]:
                return 204, None
            case ["DELETE"]:
                del tables[table.name]
                return 204, None
            case ["GET"]:
                if table.format != "DELTA":
                    raise Refusal(400, "UnsupportedTableFormatException", f"{table.name} no Delta")
                return 200, table.answer()
            case ["GET", "credentials"]:
                if query.get("operation") not in {"READ", "READ_WRITE"}:
                    raise Refusal(400, "BadRequestException", "operation")
                return 200, self._credentials(table.location, query["operation"])
            case ["POST"]:
                return 200, self._update(table, body)
            case ["POST", "metrics"]:
                if body.get("table-id") != table.table_id:
                    raise invalid("table-id")
                return 204, None
            case ["POST", "rename"]:
                if body["new-name"] in tables:
                    raise Refusal(409, "AlreadyExistsException", body["new-name"])
                tables[body["new-name"]] = tables.pop(table.name)
                table.name = body["new-name"]
                return 204, None
        raise Refusal(404, "NotFoundException", method)

    def _config(self, query: dict[str, str]) -> Any:
        if "catalog" not in query or "protocol-versions" not in query:
            raise invalid("catalog and protocol-versions are required")
        if not any(catalog == query["catalog"] for catalog, _ in self.schemas):
            raise Refusal(404, "NoSuchCatalogException", query["catalog"])
        if not any(v.startswith("1.") for v in query["protocol-versions"].split(",")):
            raise invalid("this server supports 1.0")
        base = "/v1/catalogs/{catalog}/schemas/{schema}"
        return {
            "endpoints": [
                f"POST {base}/staging-tables",
                f"POST {base}/tables",
                f"GET {base}/tables/{{table}}",
                f"POST {base}/tables/{{table}}",
                f"DELETE {base}/tables/{{table}}",
                f"HEAD {base}/tables/{{table}}",
                f"GET {base}/tables/{{table}}/credentials",
                f"POST {base}/tables/{{table}}/metrics",
                "GET /v1/staging-tables/{table_id}/credentials",
            ],
            "protocol-version": "1.0",
        }

    def _credentials(self, location: str, operation: str) -> Any:
        config = {} if self.credentials is None else self.credentials(location, operation)
        return {
            "storage-credentials": [
                {
                    "prefix": config.pop("prefix", location),
                    "operation": operation,
                    "expiration-time-ms": config.pop("expires", int(time.time() * 1000) + 3600_000),
                    "config": config,
                }
            ]
        }

    def _stage_table(self, catalog: str, schema: str, body: Any) -> Any:
        if not body.get("name"):
            raise Refusal(400, "BadRequestException", "name is required")
        if body["name"] in self.tables_of(catalog, schema):
            raise Refusal(409, "AlreadyExistsException", f"table {body['name']} exists")
        table_id = str(uuid.uuid4())
        location = f"{self.location_root}/__unitystorage/tables/{table_id}"
        self.staging[table_id] = Table(body["name"], table_id, location, "MANAGED")
        return {
            "table-id": table_id,
            "table-type": "MANAGED",
            "location": location,
            **self._credentials(location, "READ_WRITE"),
            "required-protocol": {
                "min-reader-version": 3,
                "min-writer-version": 7,
                "reader-features": REQUIRED_READER,
                "writer-features": REQUIRED_WRITER,
            },
            "suggested-protocol": {
                "reader-features": ["columnMapping"],
                "writer-features": ["columnMapping", "domainMetadata", "rowTracking"],
            },
            "required-properties": {**REQUIRED_PROPERTIES, "io.unitycatalog.tableId": table_id},
            "suggested-properties": SUGGESTED_PROPERTIES,
        }

    def _create_table(self, catalog: str, schema: str, body: Any) -> Any:
        tables = self.tables_of(catalog, schema)
        for key in ("name", "location", "table-type", "columns", "protocol", "properties"):
            if key not in body:
                raise Refusal(400, "BadRequestException", f"{key} is required")
        if type(body.get("last-commit-timestamp-ms")) is not int:
            raise Refusal(400, "BadRequestException", "last-commit-timestamp-ms is required")
        if body["table-type"] == "MANAGED":
            table = self._find_staging(body)
            check_contract(body["protocol"], body["properties"], body.get("domain-metadata") or {})
            if body["properties"].get("io.unitycatalog.tableId") != table.table_id:
                raise invalid("io.unitycatalog.tableId does not match")
        else:
            table = Table(body["name"], str(uuid.uuid4()), body["location"], "EXTERNAL")
        if body["name"] in tables:
            raise Refusal(409, "AlreadyExistsException", f"table {body['name']} exists")
        table.columns, table.protocol = body["columns"], body["protocol"]
        check_columns(table.columns)
        table.partition_columns = body.get("partition-columns", [])
        table.properties = without_synthetic(body["properties"])
        table.domains = dict(body.get("domain-metadata") or {})
        table.comment = body.get("comment")
        table.last_update = (0, body["last-commit-timestamp-ms"])
        table.allowed = self.allowed_maintenance
        if body["table-type"] == "MANAGED":
            # The duty of the client, which the real server need not check.
            self._check_lockstep(table, 0, table.path / "_delta_log" / f"{0:020d}.json")
            del self.staging[table.table_id]
        tables[body["name"]] = table
        return table.answer()

    def _find_staging(self, body: Any) -> Table:
        for table in self.staging.values():
            if table.location == body["location"]:
                table.name = body["name"]
                return table
        finished = [t for tables in self.schemas.values() for t in tables.values()]
        if any(table.location == body["location"] for table in finished):
            raise invalid("the staging table was finalized already")
        raise Refusal(404, "NoSuchTableException", "no staging table at the location")

    def _update(self, table: Table, body: Any) -> Any:
        requirements, updates = body.get("requirements", []), body.get("updates", [])
        kinds = [requirement["type"] for requirement in requirements]
        actions = [update["action"] for update in updates]
        if not updates:
            raise invalid("at least one update is required")
        if len(set(kinds)) != len(kinds) or len(set(actions)) != len(actions):
            raise invalid("at most one of each")
        if "assert-table-uuid" not in kinds:
            raise invalid("assert-table-uuid is required")
        by_action = {update["action"]: update for update in updates}
        if unknown := by_action.keys() - _ACTIONS.keys() - _COMMIT_ACTIONS:
            raise invalid(f"unknown update action {unknown}")
        check_overlaps(by_action)
        for requirement in requirements:
            self._check_requirement(table, requirement)
        changed = _copy(table)
        for action, apply in _ACTIONS.items():
            if action in by_action:
                apply(changed, by_action[action])
        if table.table_type == "MANAGED" and {"set-protocol", "set-domain-metadata"} & set(actions):
            check_contract(changed.protocol, changed.properties, changed.domains)
        is_changed = any(
            action in _ACTIONS and not _is_row_tracking_alone(by_action[action])
            for action in actions
        )
        commit = by_action.get("add-commit")
        if commit is not None:
            self._add_commit(changed, commit["commit"], is_changed=is_changed)
        if "set-latest-backfilled-version" in by_action:
            update = by_action["set-latest-backfilled-version"]
            self._report_published(changed, update["latest-published-version"])
        if is_changed:
            changed.etag += 1
        table.__dict__.update(changed.__dict__)
        return table.answer()

    def _check_requirement(self, table: Table, requirement: Any) -> None:
        match requirement["type"]:
            case "assert-table-uuid":
                held, given = table.table_id, requirement["uuid"]
            case "assert-etag":
                held, given = f"etag-{table.etag}", requirement["etag"]
            case kind:
                raise invalid(f"unknown requirement {kind}")
        if held != given:
            raise Refusal(409, "UpdateRequirementConflictException", requirement["type"])

    def _add_commit(self, table: Table, commit: Any, *, is_changed: bool) -> None:
        if table.table_type != "MANAGED":
            raise invalid("add-commit requires a MANAGED table")
        for key in ("version", "timestamp", "file-size", "file-modification-timestamp"):
            if type(commit.get(key)) is not int or commit[key] <= 0:
                raise invalid(f"{key} must be positive")
        version = commit["version"]
        if version <= table.latest:
            raise Refusal(409, "CommitVersionConflictException", f"version {version} is taken")
        if version > table.latest + 1:
            raise invalid(f"version must be {table.latest + 1}")
        if len(table.commits) >= self.max_unpublished:
            raise Refusal(429, "ResourceExhaustedException", "too many unpublished commits")
        staged = table.path / "_delta_log" / "_staged_commits" / commit["file-name"]
        if "/" in commit["file-name"] or not staged.exists():
            raise invalid("no such staged file")
        if staged.stat().st_size != commit["file-size"]:
            raise invalid("file-size")
        if int(commit["file-name"].split(".")[0]) != version:
            raise invalid("file-name")
        if table.commits and commit["timestamp"] <= table.commits[table.latest]["timestamp"]:
            raise invalid("timestamp")
        table.commits[version], table.latest = commit, version
        self._check_lockstep(table, version, staged)
        if is_changed:
            table.last_update = (version, commit["timestamp"])

    def _check_lockstep(self, table: Table, version: int, file: Path) -> None:
        """Refuse a commit that says something else than the catalog then does."""
        if not file.exists():
            raise invalid(f"{file} does not exist")
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        actions: dict[str, Any] = {key: value for line in lines for key, value in line.items()}
        info = actions["commitInfo"]
        assert next(iter(lines[0])) == "commitInfo", "commitInfo is the first action"
        if not info.get("txnId"):
            raise invalid("commitInfo has no txnId")
        stated = table.commits[version]["timestamp"] if version else table.last_update[1]
        if info.get("inCommitTimestamp") != stated:
            raise invalid("inCommitTimestamp is not the timestamp of the commit")
        if (metadata := actions.get("metaData")) is not None:
            check_mirrored_metadata(table, metadata)
        if (protocol := actions.get("protocol")) is not None:
            mirrored = {
                "min-reader-version": protocol["minReaderVersion"],
                "min-writer-version": protocol["minWriterVersion"],
                "reader-features": protocol["readerFeatures"],
                "writer-features": protocol["writerFeatures"],
            }
            if mirrored != table.protocol:
                raise invalid("the protocol was not mirrored")
        for line in lines:
            if (domain := line.get("domainMetadata")) is not None:
                self._check_domain(table, domain)

    @staticmethod
    def _check_domain(table: Table, domain: Any) -> None:
        if domain["domain"] not in {"delta.clustering", "delta.rowTracking"}:
            return
        held = table.domains.get(domain["domain"])
        if domain.get("removed"):
            if held is not None:
                raise invalid(f"{domain['domain']} was not removed")
            return
        said = json.loads(domain["configuration"])
        if held is None or any(said[key] != value for key, value in held.items()):
            raise invalid(f"{domain['domain']} was not mirrored")

    @staticmethod
    def _report_published(table: Table, version: int) -> None:
        if version > table.latest:
            raise invalid("reported version is beyond the latest")
        # Older ones may be cleaned up.
        for published in (known for known in table.commits if known <= version):
            if not (table.path / "_delta_log" / f"{published:020d}.json").exists():
                raise invalid(f"version {published} is not published")
        table.commits = {v: commit for v, commit in table.commits.items() if v > version}

    def _handle_older(
        self, method: str, path: str, query: dict[str, str], body: Any
    ) -> tuple[int, Any]:
        match [method, *[urllib.parse.unquote(part) for part in path.strip("/").split("/")]]:
            case ["GET", "catalogs"]:
                names = sorted({catalog for catalog, _ in self.schemas})
                return 200, self._page("catalogs", [{"name": name} for name in names], query)
            case ["GET", "schemas"]:
                catalog = query["catalog_name"]
                names = sorted(schema for found, schema in self.schemas if found == catalog)
                if not names:
                    raise Refusal(404, "CATALOG_NOT_FOUND", catalog)
                return 200, self._page("schemas", [{"name": name} for name in names], query)
            case ["GET", "tables"]:
                catalog, schema = query["catalog_name"], query["schema_name"]
                found = self.tables_of(catalog, schema).values()
                infos = [older_info(catalog, schema, table) for table in found]
                return 200, self._page("tables", infos, query)
            case ["GET", "tables", name]:
                catalog, schema, table = name.split(".")
                if table not in self.tables_of(catalog, schema):
                    raise Refusal(404, "TABLE_NOT_FOUND", name)
                return 200, older_info(catalog, schema, self.find(name))
            case ["POST", "temporary-table-credentials"]:
                tables = [t for tables in self.schemas.values() for t in tables.values()]
                (held,) = [t for t in tables if t.table_id == body["table_id"]]
                config = (self.credentials or (lambda *_: {}))(held.location, body["operation"])
                return 200, {
                    "aws_temp_credentials": {
                        "access_key_id": config.get("s3.access-key-id"),
                        "secret_access_key": config.get("s3.secret-access-key"),
                        "session_token": config.get("s3.session-token"),
                    },
                    "expiration_time": int(time.time() * 1000) + 3600_000,
                }
        raise Refusal(404, "NOT_FOUND", path)

    @staticmethod
    def _page(key: str, found: list[Any], query: dict[str, str]) -> Any:
        first, size = int(query.get("page_token") or 0), int(query.get("max_results") or 100)
        more = first + size < len(found)
        token = {"next_page_token": str(first + size)} if more else {}
        return {key: found[first : first + size], **token}


def older_info(catalog: str, schema: str, table: Table) -> Any:
    return {
        "name": table.name,
        "catalog_name": catalog,
        "schema_name": schema,
        "table_type": table.table_type,
        "data_source_format": table.format,
        "storage_location": table.location,
        "comment": table.comment,
        "owner": table.owner,
        "table_id": table.table_id,
        "properties": table.all_properties(),
        "columns": [
            {
                "name": column["name"],
                "type_text": column["type"] if isinstance(column["type"], str) else "struct",
                "comment": column["metadata"].get("comment"),
                "nullable": column["nullable"],
                "position": position,
                "type_name": str(column["type"]).upper()
                if isinstance(column["type"], str)
                else "STRUCT",
                "type_precision": 0,
                "type_scale": 0,
                "type_json": json.dumps(column),
            }
            for position, column in enumerate(table.columns.get("fields", []))
        ],
    }


def check_contract(protocol: Any, properties: Any, domains: Any) -> None:
    """The features and properties that a managed table has to have."""
    reader, writer = protocol.get("reader-features", []), protocol.get("writer-features", [])
    if (protocol.get("min-reader-version"), protocol.get("min-writer-version")) < (3, 7):
        raise invalid("protocol versions")
    if extra := set(reader) - set(writer):
        raise invalid(f"{extra} is in reader-features but not in writer-features")
    if missing := set(REQUIRED_READER) - set(reader) | set(REQUIRED_WRITER) - set(writer):
        raise invalid(f"missing required feature {missing}")
    for domain, feature in (
        ("delta.clustering", "clustering"),
        ("delta.rowTracking", "rowTracking"),
    ):
        if domain in domains and feature not in writer:
            raise invalid(f"{domain} needs {feature}")
    for key, value in REQUIRED_PROPERTIES.items():
        if properties.get(key) != value:
            raise invalid(f"required property {key} must be {value}")
    if not properties.get("io.unitycatalog.tableId"):
        raise invalid("io.unitycatalog.tableId is missing")


def check_columns(columns: Any) -> None:
    if columns.get("type") != "struct" or not columns.get("fields"):
        raise invalid("columns are a struct with fields")
    for column in columns["fields"]:
        if column.keys() != {"name", "type", "nullable", "metadata"}:
            raise invalid(f"field {column}")
    names = [column["name"].lower() for column in columns["fields"]]
    if len(set(names)) != len(names):
        raise invalid("a name of a column is there twice")


def check_mirrored_metadata(table: Table, metadata: Any) -> None:
    if table.columns != respell(json.loads(metadata["schemaString"])):
        raise invalid("columns were not mirrored")
    if table.properties != metadata["configuration"]:
        raise invalid(f"properties: {table.properties} {metadata['configuration']}")
    if table.partition_columns != metadata["partitionColumns"]:
        raise invalid("partition columns were not mirrored")
    if (table.comment or None) != (metadata.get("description") or None):
        raise invalid("the description was not mirrored")


def check_overlaps(by_action: Any) -> None:
    for setter, remover, key in (
        ("set-properties", "remove-properties", "removals"),
        ("set-domain-metadata", "remove-domain-metadata", "domains"),
    ):
        both = setter in by_action and remover in by_action
        if both and set(by_action[setter]["updates"]) & set(by_action[remover][key]):
            raise invalid(f"{setter} and {remover} overlap")


def without_synthetic(properties: Any) -> dict[str, str]:
    for key, value in properties.items():
        if key in SYNTHETIC or key.startswith("delta.feature.") or not isinstance(value, str):
            raise invalid(f"{key} is derived by the server")
    return dict(properties)


def respell(kind: Any) -> Any:
    """A type of a log's schema in the spelling of the catalog."""
    if isinstance(kind, str):
        return kind
    match kind["type"]:
        case "array":
            return {
                "type": "array",
                "element-type": respell(kind["elementType"]),
                "contains-null": kind["containsNull"],
            }
        case "map":
            return {
                "type": "map",
                "key-type": respell(kind["keyType"]),
                "value-type": respell(kind["valueType"]),
                "value-contains-null": kind["valueContainsNull"],
            }
    fields = [{**field, "type": respell(field["type"])} for field in kind["fields"]]
    return {"type": "struct", "fields": fields}


def _copy(table: Table) -> Table:
    copied = Table(**table.__dict__)
    copied.properties, copied.domains = dict(table.properties), dict(table.domains)
    copied.commits = dict(table.commits)
    return copied


def _is_row_tracking_alone(update: Any) -> bool:
    is_domain = update["action"] == "set-domain-metadata"
    return is_domain and set(update["updates"]) == {"delta.rowTracking"}


def _set_columns(table: Table, update: Any) -> None:
    check_columns(update["columns"])
    table.columns = update["columns"]


def _set_partition_columns(table: Table, update: Any) -> None:
    table.partition_columns = update["partition-columns"]


def _set_protocol(table: Table, update: Any) -> None:
    table.protocol = update["protocol"]


def _set_properties(table: Table, update: Any) -> None:
    table.properties |= without_synthetic(update["updates"])


def _remove_properties(table: Table, update: Any) -> None:
    for key in update["removals"]:
        table.properties.pop(key, None)


def _set_domains(table: Table, update: Any) -> None:
    if not update["updates"] or set(update["updates"]) - {"delta.clustering", "delta.rowTracking"}:
        raise invalid("domains")
    table.domains |= update["updates"]


def _remove_domains(table: Table, update: Any) -> None:
    for domain in update["domains"]:
        if domain not in {"delta.clustering", "delta.rowTracking"}:
            raise invalid(f"unknown domain {domain}")
        table.domains.pop(domain, None)


def _set_comment(table: Table, update: Any) -> None:
    table.comment = update["comment"]


def _set_snapshot(table: Table, update: Any) -> None:
    if table.table_type != "EXTERNAL":
        raise invalid("update-metadata-snapshot-version is for external tables")
    table.last_update = (update["last-commit-version"], update["last-commit-timestamp-ms"])


_ACTIONS: dict[str, Callable[[Table, Any], None]] = {
    "set-columns": _set_columns,
    "set-partition-columns": _set_partition_columns,
    "set-protocol": _set_protocol,
    "set-properties": _set_properties,
    "remove-properties": _remove_properties,
    "set-domain-metadata": _set_domains,
    "remove-domain-metadata": _remove_domains,
    "set-table-comment": _set_comment,
    "update-metadata-snapshot-version": _set_snapshot,
}
_COMMIT_ACTIONS = {"add-commit", "set-latest-backfilled-version"}


class _Handler(BaseHTTPRequestHandler):
    server_state: UnityServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._serve("GET")

    def do_HEAD(self) -> None:
        self._serve("HEAD")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_DELETE(self) -> None:
        self._serve("DELETE")

    def _serve(self, method: str) -> None:
        server = self.server_state
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length)
        parts = urllib.parse.urlsplit(self.path)
        path, query = parts.path, dict(urllib.parse.parse_qsl(parts.query))
        what = f"{method} {path.removeprefix(PREFIX)}"
        with server.lock:
            server.requests[what] += 1
            fault = self._strike(method, path, raw)
        if server.before_answer is not None:
            server.before_answer(method, path)
        if fault is not None and fault.kind == "lose_request":
            self._hang_up()
            return
        if fault is not None and fault.kind == "answer":
            assert fault.refusal is not None
            self._refuse(fault.refusal)
            return
        try:
            if path == "/oidc/v1/token":
                status, answer = 200, self._issue_token(raw)
            else:
                self._check_token()
                body = json.loads(raw) if raw else None
                with server.lock:
                    server.log.append((method, path.removeprefix(PREFIX), body))
                status, answer = server.handle(method, path.removeprefix(PREFIX), query, body)
        except Refusal as refusal:
            self._refuse(refusal)
            return
        if fault is not None:
            self._hang_up()
            return
        self._answer(status, answer)

    def _strike(self, method: str, path: str, body: bytes) -> Fault | None:
        for fault in self.server_state.faults:
            fits = fault.method == method and fault.path_contains in path
            if fits and fault.body_contains.encode() in body and fault.times > 0:
                fault.times -= 1
                return fault
        return None

    def _check_token(self) -> None:
        server = self.server_state
        if server.tokens is None and not server.clients:
            return
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        is_known = token in (server.tokens or ())
        if not is_known and server.issued.get(token, 0) < time.time():
            raise Refusal(401, "NotAuthorizedException", "the token is missing or invalid")

    def _issue_token(self, raw: bytes) -> Any:
        server = self.server_state
        login = self.headers.get("Authorization", "").removeprefix("Basic ")
        client_id, _, secret = b64decode(login).decode().partition(":")
        form = dict(urllib.parse.parse_qsl(raw.decode()))
        if server.clients.get(client_id) != secret or form["grant_type"] != "client_credentials":
            raise Refusal(401, "NotAuthorizedException", "unknown client")
        token = str(uuid.uuid4())
        server.issued[token] = time.time() + server.token_seconds
        return {"access_token": token, "token_type": "Bearer", "expires_in": server.token_seconds}

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.close()

    def _refuse(self, refusal: Refusal) -> None:
        error = {"type": refusal.kind, "code": refusal.status, "message": str(refusal)}
        is_delta = "/delta/v1" in self.path
        older = {"error_code": refusal.kind, "message": str(refusal)}
        self._answer(refusal.status, {"error": error} if is_delta else older)

    def _answer(self, status: int, answer: Any) -> None:
        data = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
