"""Table properties and protocol: set, unset, and what they need of each other."""
