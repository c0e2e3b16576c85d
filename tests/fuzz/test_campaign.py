"""A short campaign of damaged frames; `make fuzz` plays a long one."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from images.wire.messages import SUPPORTED, Api, read_request_header, request_class
from tests.fuzz.campaign import Campaign
from tests.fuzz.frames import Frames, lengths
from tests.fuzz.requests import OddRequests

FRAMES = 3_000


def test_no_damaged_frame_ends_a_node_or_keeps_another_client_waiting(tmp_path: Path) -> None:
    report = Campaign(tmp_path, FRAMES, seed=0).run()
    assert not report.failures
    assert report.frames == FRAMES
    assert report.answered > FRAMES // 20
    assert report.closed > FRAMES // 20
    assert report.canary_answers > 0


def test_a_campaign_names_the_node_that_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    campaign = Campaign(tmp_path, FRAMES, seed=0)
    drawn = campaign.frames

    def killing() -> object:
        for number, item in enumerate(drawn()):
            if number == 100:
                os.kill(campaign.cluster.pids["c1"], signal.SIGKILL)
            yield item

    monkeypatch.setattr(campaign, "frames", killing)
    report = campaign.run()
    assert any(failure.startswith("c1 ended") for failure in report.failures)
    assert report.frames < FRAMES


@pytest.mark.parametrize("api", Api, ids=lambda api: api.name)
def test_every_length_of_a_request_is_found(api: Api) -> None:
    random = Random(api)
    frames = Frames(random, OddRequests(random, [UUID(int=1)]), (api,))
    for version in SUPPORTED[api]:
        message = request_class(api, version)
        for _ in range(20):
            frame = frames.whole(message)
            start = read_request_header(frame).end + bool(message.__header_schema__.__flexible__)  # type: ignore[attr-defined]
            lengths(message, frame, start)  # raises when the lengths do not lead to the frame's end
