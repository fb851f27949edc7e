"""Authorized operations: the bit fields of Metadata and the describe APIs. Without ACLs every operation is authorized.

Bit n is the operation with code n: 3 read, 4 write, 5 create, 6 delete, 7 alter, 8 describe, 9 cluster action, 10 describe
configs, 11 alter configs, 12 idempotent write. Source: KIP-430, KIP-848 (settings of groups).
"""

TOPIC_OPERATIONS = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
GROUP_OPERATIONS = sum(1 << code for code in (3, 6, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))
