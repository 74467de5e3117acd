"""Put the files of one day of the shop into the landing folder: `make_day.py 1`, then 2 and 3."""

from __future__ import annotations

import os
import sys
from pathlib import Path

LANDING = Path(os.environ.get("SHOP_LANDING", Path(__file__).parent / "landing"))

CUSTOMERS = {
    1: "1,Ada,Delft\n2,Blaise,Lyon\n3,Carl,Bonn\n",
    2: "2,Blaise,Paris\n4,Dorothy,York\n",  # Blaise moves, Dorothy is new
    3: "2,Blaise,Rouen\n3,Carl,Bonn\n",  # Blaise moves again; nothing is new about Carl
}
ORDERS = {
    1: "10,1,2026-03-01,20.50\n11,2,2026-03-01,5.00\n",
    2: "12,2,2026-03-02,7.25\n12,2,2026-03-02,7.25\n",  # the till sent one order twice
    3: "13,4,2026-03-03,100.00\n14,1,2026-03-03,2.00\n",
}


def make_day(day: int) -> None:
    """Write the files of day 1, 2 or 3."""
    for kind, header, rows in (
        ("customers", "id,name,city", CUSTOMERS[day]),
        ("orders", "id,customer,day,amount", ORDERS[day]),
    ):
        path = LANDING / kind / f"2026-03-0{day}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(f"{header}\n{rows}")
        part.rename(path)


if __name__ == "__main__":
    make_day(int(sys.argv[1]))
