"""Kinds of packets that a simulated connection sends."""

from __future__ import annotations

DATA, FIN, RST, ABORT, ACCEPT = range(5)
"""Bytes, the end of one direction, the answer to a packet for a connection that is gone (which comes again with the
packet), the reset of a kernel that closes (which is sent once), and the last packet of the handshake."""
