"""The only powers of two and ten. Inside: bytes, seconds, FLOP; GiB, GB/s and TFLOP/s at the edge."""

from typing import Final

MIB: Final = 2**20
GIB: Final = 2**30
GB: Final = 10**9
"""Bytes of a decimal gigabyte, as link and memory bandwidths are quoted."""
GIGABIT_BYTES: Final = 10**9 / 8
"""Bytes of 10^9 bit, as network links are quoted."""
TERA: Final = 10**12
SECONDS_PER_HOUR: Final = 3_600
SECONDS_PER_DAY: Final = 86_400
JOULES_PER_KWH: Final = 3.6e6
