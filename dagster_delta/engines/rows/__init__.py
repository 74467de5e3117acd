"""Operations on rows for both engines: fill in columns, number, split and sort rows."""
