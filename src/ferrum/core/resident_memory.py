"""How much of this process lies in memory: now, and when ferrum came into it."""

from __future__ import annotations

import os
from typing import Final


def resident_bytes() -> int | None:
    """Resident memory of the process, as Linux counts it (`proc(5)`, statm); None on other systems."""
    try:
        file = os.open("/proc/self/statm", os.O_RDONLY)
    except OSError:
        return None
    try:
        return int(os.read(file, 256).split()[1]) * os.sysconf("SC_PAGE_SIZE")
    finally:
        os.close(file)


AT_IMPORT: Final = resident_bytes()
"""Read by `import ferrum`, before any library that ferrum puts off: what they bring is counted from here."""
