"""Kinds of packets that a simulated connection sends."""

from __future__ import annotations

DATA, FIN, RST, ACCEPT = range(4)
"""Bytes, the end of one direction, the end of the connection, and the last packet of the handshake."""
