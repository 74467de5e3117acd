"""ALTER TABLE as text: what it says, before anything is planned."""
