"""The history: what every client asked, when, and what it was told.

One row an operation. An operation is *invoked* and later *completed* `ok`, `fail` (it certainly did not happen) or
`info` (it may have happened, or may still happen). An operation without completion counts as `info`.

column        type           meaning
------------  -------------  -----------------------------------------------------------------------------------
index         int64          order of invocation, unique in the run
process       int32          the client thread that asked; one operation at a time unless pipelined
kind          string         append · poll · end_offset
phase         string         main · final (the reads after healing)
topic         string
partition     int32
invoked_ns    int64          true time since the run began
completed_ns  int64          null when it never completed
outcome       string         ok · fail · info
value         int64          append: the unique value written; else null
offset        int64          append: offset assigned (null unless ok); poll: position asked;
                             end_offset: the end answered (null unless ok)
leader_epoch  int32          epoch of the answering leader where the answer tells; else null
offsets       list<int64>    poll: offsets returned, in the order delivered
values        list<int64>    poll: values returned, same order
error         string         Kafka's error name, `timeout`, `connection` …; null when ok
"""

from __future__ import annotations

import pyarrow as pa

SCHEMA = pa.schema(
    [
        pa.field("index", pa.int64(), nullable=False),
        pa.field("process", pa.int32(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("phase", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("invoked_ns", pa.int64(), nullable=False),
        pa.field("completed_ns", pa.int64()),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("value", pa.int64()),
        pa.field("offset", pa.int64()),
        pa.field("leader_epoch", pa.int32()),
        pa.field("offsets", pa.list_(pa.int64())),
        pa.field("values", pa.list_(pa.int64())),
        pa.field("error", pa.string()),
    ],
    metadata={"faultline.table": "history", "faultline.version": "1"},
)
