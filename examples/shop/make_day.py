"""Put the files of one day of the shop into the landing folder: `make_day.py 1`, then 2 and 3."""

from __future__ import annotations

import os
import sys
from pathlib import Path

LANDING = Path(os.environ.get("SHOP_LANDING", Path(__file__).parent / "landing"))

CUSTOMERS = {
    1: (
        "1,Ada,Delft,2026-03-01 08:00:00,U\n"
        "2,Blaise,Lyon,2026-03-01 08:05:00,U\n"
        "3,Carl,Bonn,2026-03-01 08:10:00,U\n"
    ),
    # Blaise moves twice on one day, and the second move comes first; Dorothy is new.
    2: (
        "2,Blaise,Paris,2026-03-02 15:00:00,U\n"
        "2,Blaise,Nice,2026-03-02 09:00:00,U\n"
        "4,Dorothy,York,2026-03-02 10:00:00,U\n"
    ),
    # Ada's move comes a day late, Dorothy is sent again without a change, and Carl leaves.
    3: (
        "1,Ada,Gouda,2026-03-02 12:00:00,U\n"
        "4,Dorothy,York,2026-03-03 07:00:00,U\n"
        "3,,,2026-03-03 09:00:00,D\n"
    ),
}
ORDERS = {
    1: "10,1,2026-03-01,20.50\n11,2,2026-03-01,5.00\n",
    2: "12,2,2026-03-02,7.25\n12,2,2026-03-02,7.25\n",  # the till sent one order twice
    3: "13,4,2026-03-03,100.00\n14,1,2026-03-03,2.00\n15,1,2026-03-03,-4.00\n",  # and one wrong
}


def make_day(day: int) -> None:
    """Write the files of day 1, 2 or 3."""
    for kind, header, rows in (
        ("customers", "id,name,city,changed_at,op", CUSTOMERS[day]),
        ("orders", "id,customer,day,amount", ORDERS[day]),
    ):
        path = LANDING / kind / f"2026-03-0{day}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(f"{header}\n{rows}")
        part.rename(path)


if __name__ == "__main__":
    make_day(int(sys.argv[1]))
