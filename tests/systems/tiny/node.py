"""One node of the tiny system: `python3 -m tests.systems.tiny.node CONFIG`.

It answers Metadata with itself as the only broker and knows nothing else. CONFIG is JSON: id, host, port, data.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from kio.schema.metadata.v12.response import MetadataResponse, MetadataResponseBroker

from images.wire.connection import decode_request, encode_response


async def main(config: dict[str, Any]) -> None:
    data = Path(config["data"])
    data.mkdir(parents=True, exist_ok=True)
    (data / "started").write_text(str(config["id"]))
    answer = MetadataResponse(
        throttle_time=timedelta(),
        brokers=(MetadataResponseBroker(node_id=config["id"], host=config["host"], port=config["port"]),),
        topics=(),
    )

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                length = await reader.readexactly(4)
                frame = length + await reader.readexactly(int.from_bytes(length))
                header, _ = decode_request(frame)
                writer.write(encode_response(answer, header.correlation_id))
        except asyncio.IncompleteReadError:
            writer.close()

    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    server = await asyncio.start_server(serve, config["host"], config["port"])
    print(f"node {config['id']} listens", flush=True)
    await stopping.wait()
    server.close()


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))
