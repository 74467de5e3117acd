"""Components: tables, computed assets, files, upkeep and sensors, declared in a `defs.yaml`.

Tested by `tests/orchestration/components`.
"""
