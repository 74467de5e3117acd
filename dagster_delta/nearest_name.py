"""The name that another one was probably meant as."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest_name(name: str, known: Iterable[str], *, similarity: float = 0.6) -> str | None:
    """The known name most similar to one that is refused anyway, in any case; None if none is.

    Args:
        name: the unknown name.
        known: the names that it may have been meant as.
        similarity: of the two, from 0 to 1.
    """
    by_folded = {one.lower(): one for one in sorted(known)}
    close = difflib.get_close_matches(name.lower(), by_folded, n=1, cutoff=similarity)
    return by_folded[close[0]] if close else None


def misspelled_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that one which may be right is a misspelling of; None if it is another name.

    The same letters in another order are a misspelling, as in `nmae`; `schema_name` and
    `schema_mode`, which share one of their words, are two names.
    """
    known = list(known)
    letters = sorted(name.lower())
    swapped = (one for one in sorted(known) if sorted(one.lower()) == letters)
    return next(swapped, None) or nearest_name(name, known, similarity=0.83)
