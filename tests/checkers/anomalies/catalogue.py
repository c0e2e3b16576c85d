"""Every anomaly. A module has those of one subject; add yours to its module's tuple, or a module here."""

from __future__ import annotations

from tests.checkers.anomalies.anomaly import Anomaly
from tests.checkers.anomalies.answer_anomalies import ANSWER_ANOMALIES
from tests.checkers.anomalies.consumer_anomalies import CONSUMER_ANOMALIES
from tests.checkers.anomalies.group_anomalies import GROUP_ANOMALIES
from tests.checkers.anomalies.log_anomalies import LOG_ANOMALIES
from tests.checkers.anomalies.producer_anomalies import PRODUCER_ANOMALIES
from tests.checkers.anomalies.time_anomalies import TIME_ANOMALIES
from tests.checkers.anomalies.trace_anomalies import TRACE_ANOMALIES

ANOMALIES: tuple[Anomaly, ...] = (
    *PRODUCER_ANOMALIES,
    *LOG_ANOMALIES,
    *CONSUMER_ANOMALIES,
    *TIME_ANOMALIES,
    *GROUP_ANOMALIES,
    *TRACE_ANOMALIES,
    *ANSWER_ANOMALIES,
)
