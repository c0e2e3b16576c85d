"""Controllers that let a strategy of unclean recovery begin too early, by mistake."""

from __future__ import annotations

from dataclasses import replace

import pytest

from images.broker.controller import topic_config
from images.broker.controller.metadata_change import MetadataChange
from images.broker.controller.partition_change import PartitionChangeBuilder
from images.broker.controller.unclean_recovery import Strategy, strategy_of
from images.broker.frozen_map import FrozenMap
from images.broker.metadata.image import PartitionImage, TopicImage


def begin_early(patch: pytest.MonkeyPatch) -> None:
    """A strategy begins at once. Nobody has recorded who left the ELR before."""
    patch.setattr(topic_config, "change_refused", lambda topic, configured: None)


def begin_early_with_all(patch: pytest.MonkeyPatch) -> None:
    """A strategy begins at once, and all replicas outside of too small an ISR and ELR are taken for former members of
    the ELR, also those that left the ISR long before the others."""
    begin_early(patch)
    right = MetadataChange.configure

    def configure(change: MetadataChange, topic: TopicImage, config: FrozenMap[str, str]) -> None:
        make_builder = change._partition_change

        def with_all(configured: TopicImage, partition: PartitionImage) -> PartitionChangeBuilder:
            builder = make_builder(configured, partition)
            begins = strategy_of(topic) is Strategy.LAST_KNOWN_LEADER is not strategy_of(configured)
            if begins and len({*partition.isr, *partition.elr}) < configured.min_isr(partition):
                builder._partition = replace(partition, last_known_elr=partition.replicas)
            return builder

        with pytest.MonkeyPatch.context() as during:
            during.setattr(change, "_partition_change", with_all)
            right(change, topic, config)

    patch.setattr(MetadataChange, "configure", configure)
