#!/usr/bin/env bash
# After a query that PySpark 4.2.0 refuses, pytest 9.2.0 captures the messages of all loggers as
# JSON: `caplog.text` of later tests has no line of the usual form.
#
# For an error with a query's text, PySpark makes a logger that does not propagate, and whose
# `addHandler` gives each handler a formatter of JSON. pytest adds the one handler of `caplog` to
# such loggers too. `caplog.messages` and `caplog.records` stay as they are.
#
# Seen on 2026-11-29:
#   pyspark 4.2.0, pytest 9.2.0
#   before the query: a line; after it: JSON
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check pyspark==4.2.0 pytest==9.2.0
cd "$work"
cat >test_captured.py <<'PY'
import json
import logging
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession


def write_captured(name, caplog):
    logging.getLogger("of the test").warning("a message")
    try:
        json.loads(caplog.text)
    except ValueError:
        found = "a line"
    else:
        found = "JSON"
    Path(name).write_text(found)
    assert caplog.messages == ["a message"]


def test_before(caplog):
    write_captured("before", caplog)


def test_query():
    session = SparkSession.builder.master("local[1]").getOrCreate()
    try:
        session.sql("SELECT no_column")
    except AnalysisException:
        pass
    else:
        raise AssertionError("the query was accepted")
    finally:
        session.stop()


def test_after(caplog):
    write_captured("after", caplog)
PY
"$work/venv/bin/python" -m pytest -q -p no:cacheprovider test_captured.py >pytest.log 2>&1 || {
  cat pytest.log
  exit 1
}
found="before the query: $(cat before); after it: $(cat after)"
"$work/venv/bin/pip" list 2>/dev/null | grep -E '^(pyspark|pytest) '
echo "$found"
if [ "$found" != "before the query: a line; after it: JSON" ]; then
  echo DIFFERENT
  exit 1
fi
echo "as described"
