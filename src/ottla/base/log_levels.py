"""Levels and names of the loggers of a broker. The numbers are those of Python's ``logging``, the texts those of Kafka's log levels."""

from enum import IntEnum


class LogLevel(IntEnum):
    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40
    CRITICAL = 50


#: Texts of levels in BROKER_LOGGER settings and ``--log-level``. TRACE has no level of its own in Python. Source: Kafka's LogLevelConfig.
LEVELS = {
    "TRACE": LogLevel.DEBUG,
    "DEBUG": LogLevel.DEBUG,
    "INFO": LogLevel.INFO,
    "WARN": LogLevel.WARNING,
    "ERROR": LogLevel.ERROR,
    "FATAL": LogLevel.CRITICAL,
}

#: Registration, store session, start and stop of a broker.
SESSION = "ottla.session"
#: Election and loss of the controller, elections, topics, reassignments.
CONTROLLER = "ottla.controller"
#: Leadership, ISRs, followers.
REPLICA = "ottla.replica"
#: Log directories, segments, retention, compaction, scrubs.
STORAGE = "ottla.storage"
GROUP = "ottla.group"
TRANSACTION = "ottla.transaction"
REQUEST = "ottla.request"
SECURITY = "ottla.security"

#: The root logger, which also has the lines of libraries; all others inherit its level.
ROOT = "root"
#: The loggers whose level can be changed, with what they log.
LOGGERS = {
    ROOT: "all lines, also those of libraries",
    "ottla": "all lines of Ottla",
    "ottla.audit": "decisions of access rules",
    "ottla.client": "clients of this process",
    CONTROLLER: "election and loss of the controller, topics, reassignments",
    GROUP: "rebalances of groups and their causes",
    "ottla.net": "connections: closed, refused, authenticated",
    REPLICA: "leaders, ISR changes, followers",
    REQUEST: "slow and failed requests",
    SECURITY: "access rules and refused brokers",
    "ottla.server": "start, stop, event loop",
    SESSION: "registration and store session",
    STORAGE: "log directories, disk space, segments, retention, compaction",
    "ottla.store": "the coordination store",
    TRANSACTION: "transactions that time out",
}
