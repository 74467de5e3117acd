"""The harness that attacks the library: kills, faults, hostile tables and mutated inputs.

Run with `make soak`; `test_soak.py` runs a short version of each part. README.md explains how to
read a run.
"""
