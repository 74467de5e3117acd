"""The IO manager: values of assets as commits, inputs as scans.

Tested by `tests/orchestration/io`.
"""
