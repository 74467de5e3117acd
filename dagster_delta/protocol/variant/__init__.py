"""The binary encoding of variants, and their JSON."""
