"""Named units of sizes and times."""

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB

SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
