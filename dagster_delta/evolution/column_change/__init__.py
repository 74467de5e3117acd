"""The online change of a column to any type: its plan and its states."""
