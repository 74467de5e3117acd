"""The highest row id ever assigned, as the draft of row tracking stores it: in a separate action.

Internally it is a metadata domain, like the shipped form: the newest counts and checkpoints keep
it, without special cases elsewhere.

Spec: Increase Row ID High-water Mark (draft).
"""

from __future__ import annotations

import msgspec

from dagster_delta.errors import InvalidTable
from dagster_delta.protocol.actions import DomainMetadata
from dagster_delta.protocol.wire_values import DECODING_ERRORS, Int64

__all__ = ["ROW_ID_MARK", "RowIdHighWaterMark", "is_row_id_mark"]

ROW_ID_MARK = "rowIdHighWaterMark"
"""Name of the action, and of the internal domain that represents it."""


class RowIdHighWaterMark(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Which row ids are in use."""

    high_water_mark: Int64
    """Highest row id that was ever assigned in the table."""
    preserved_row_ids: bool = False
    """Whether rows that the commit moved or changed kept their ids."""

    def as_domain(self) -> DomainMetadata:
        """The domain that represents it."""
        text = msgspec.json.encode(self).decode()
        return DomainMetadata(domain=ROW_ID_MARK, configuration=text, removed=False)

    @classmethod
    def of_domain(cls, domain: DomainMetadata) -> RowIdHighWaterMark:
        """The action that a domain represents.

        Raises:
            InvalidTable: it cannot be parsed.
        """
        try:
            return msgspec.json.decode(domain.configuration, type=cls)
        except DECODING_ERRORS as error:
            raise InvalidTable(
                f"the action {ROW_ID_MARK} cannot be parsed ({error}), so no row id can be "
                "assigned; restore an older version of the table"
            ) from error


def is_row_id_mark(domain: DomainMetadata) -> bool:
    """Whether a domain represents the action."""
    return domain.domain == ROW_ID_MARK
