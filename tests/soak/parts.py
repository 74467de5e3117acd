"""The parts of the soak run, in the order in which they run."""

from __future__ import annotations

from tests.soak.crash_workload import play_crash_round
from tests.soak.fuzz_parsers import play_fuzz_round
from tests.soak.histories import play_history_round
from tests.soak.hostile_tables import play_hostile_round
from tests.soak.part import Part
from tests.soak.s3_faults import play_s3_round
from tests.soak.same_statement import play_race_round
from tests.soak.spark_histories import play_spark_round
from tests.soak.spark_streams import play_stream_round
from tests.soak.store_faults import play_store_round
from tests.soak.system_faults import play_system_round

PARTS = {
    part.name: part
    for part in (
        Part("races", "interleavings", play_race_round),
        Part("histories", "checks", play_history_round),
        Part("store", "faults", play_store_round, max_rounds=1),
        Part("system", "faults", play_system_round),
        Part("s3", "faults", play_s3_round),
        Part("hostile", "tables", play_hostile_round, max_rounds=1),
        Part("fuzz", "inputs", play_fuzz_round),
        Part("crash", "kills", play_crash_round),
        Part("spark", "checks", play_spark_round),
        Part("streams", "faults", play_stream_round),
    )
}
