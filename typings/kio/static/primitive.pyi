"""kio's range-checked types, as the plain types that its messages hold at run time."""

from datetime import datetime, timedelta

Records = bytes
i8 = int
i16 = int
i32 = int
i64 = int
u8 = int
u16 = int
u32 = int
u64 = int
uvarint = int
uvarlong = int
svarint = int
svarlong = int
f64 = float
i32Timedelta = timedelta
i64Timedelta = timedelta
TZAware = datetime
