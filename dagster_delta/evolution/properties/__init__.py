"""Table properties and protocol: how they are set, unset, and depend on each other."""
