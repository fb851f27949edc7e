"""What a user may ask of ``format("ottla")``, in the words of Spark's own Kafka source. Pure: no Spark, no network.

Option names are not case-sensitive (Spark's are not). An option nobody knows, two options that contradict each other, or a value that
cannot be meant is refused before anything is read, by name and with what to write instead: an option misspelt in silence is data lost in
silence.

Where reading begins, first match wins:   startingTimestamp, startingOffsetsByTimestamp, startingOffsets
Where a batch query ends, the same order: endingTimestamp,   endingOffsetsByTimestamp,   endingOffsets

Source: the Structured Streaming and Kafka integration guide of Spark 4, SPARK-49259 (maxRecordsPerPartition).
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, overload

from ottla.base.ids import TopicPartition
from ottla.base.options import suggestion
from ottla.base.paths import NotLocal, local_path
from ottla.client.options import address_problem
from ottla.spark.source.data_loss import OnDataLoss
from ottla.spark.source.offset_ranges import EARLIEST, LATEST, OffsetsError, from_json
from ottla.spark.values.options import VALUE_OPTIONS, ValueOptions, value_options

MINUTE_MS = 60_000
#: Spark's spark.network.timeout, which its Kafka source takes as the default of pollTimeoutMs.
POLL_TIMEOUT_MS = 120_000
#: How often, and how many ms apart, the driver asks for offsets again after brokers have failed to give them.
OFFSET_RETRIES, OFFSET_RETRY_MS = 3, 10

SUBSCRIPTIONS = ("assign", "subscribe", "subscribePattern")
#: Options of either query type, then those of streams alone and of batches alone.
SOURCE_OPTIONS = (
    *SUBSCRIPTIONS, "bootstrap.servers", "kafka.bootstrap.servers",
    "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets", "startingOffsetsByTimestampStrategy",
    "failOnDataLoss", "onDataLoss", "dataLossReportTo", "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries", "fetchOffset.retryIntervalMs",
    "minPartitions", "maxRecordsPerPartition", "groupIdPrefix", "includeHeaders", *VALUE_OPTIONS,
)  # fmt: skip
STREAM_OPTIONS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "commitOffsets")
BATCH_OPTIONS = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
#: Spark's own options arrive in the same table.
SPARKS_OWN = frozenset(
    {"checkpointlocation", "queryname", "outputmode", "asyncprogresstrackingenabled", "asyncprogresstrackingcheckpointintervalms"}
)
#: Client properties that would break what Spark promises, and what to use instead.
FORBIDDEN = {
    "kafka.auto.offset.reset": "use startingOffsets; it has a meaning with startingOffsets=committed alone",
    "kafka.enable.auto.commit": "Spark keeps the offsets in its checkpoint",
    "kafka.key.deserializer": "keys are binary; decode them with SQL",
    "kafka.value.deserializer": "values are binary; decode them with SQL",
    "kafka.key.serializer": "cast the column key to binary or string",
    "kafka.value.serializer": "cast the column value to binary or string",
    "kafka.interceptor.classes": "interceptors are Java classes and cannot run here",
}

#: Settings of Java's client that mean nothing to another, and change nothing of what is read or written.
JAVAS_OWN = frozenset(
    {"connections.max.idle.ms", "client.dns.lookup", "metric.reporters", "metrics.num.samples", "metrics.recording.level",
     "metrics.sample.window.ms", "auto.include.jmx.reporter", "enable.metrics.push"}
)  # fmt: skip

#: Value of startingOffsets: where a consumer group stands.
COMMITTED = "committed"
#: Kafka's word for where to begin without a committed offset.
RESET = "auto.offset.reset"

MS_OF = {"s": 1_000, "m": MINUTE_MS, "h": 60 * MINUTE_MS, "d": 24 * 60 * MINUTE_MS}
DURATION = re.compile(r"\s*(\d+)\s*(ms|milliseconds?|s|sec|seconds?|m|min|minutes?|h|hours?|d|days?)?\s*", re.IGNORECASE)


class OptionError(ValueError):
    """An option that cannot be used: the message names it and says what to do."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"option {name}: {problem}")
        self.name = name


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which partitions are read; exactly one of the three ways."""

    kind: Literal["assign", "subscribe", "subscribePattern"]
    topics: tuple[str, ...] = ()
    partitions: tuple[TopicPartition, ...] = ()
    #: Must match the whole topic name, as in Java.
    pattern: str = ""


@dataclass(frozen=True, slots=True)
class Position:
    """A place in each partition: everywhere the same special offset or time, or one of its own per partition."""

    special: int | None = None
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    timestamp_ms: int | None = None
    timestamps_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    #: Where the consumer group stands; then `special` is for partitions of which it has committed no offset, None: that is an error.
    committed: bool = False

    @property
    def by_time(self) -> bool:
        return self.timestamp_ms is not None or bool(self.timestamps_ms)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a batch or streaming read, parsed."""

    bootstrap: str
    subscription: Subscription
    starting: Position
    ending: Position = Position(special=LATEST)
    #: When no record is as young as a starting time: fail, or begin at the end.
    unmatched_start: Literal["error", "latest"] = "error"
    on_data_loss: OnDataLoss = "fail"
    #: A file to which each loss is appended as a line of JSON.
    loss_report_to: str | None = None
    include_headers: bool = False
    poll_timeout_ms: int = POLL_TIMEOUT_MS
    tasks_min: int | None = None
    records_per_task_max: int | None = None
    records_per_trigger_max: int | None = None
    records_per_trigger_min: int | None = None
    trigger_delay_max_ms: int = 15 * MINUTE_MS
    offset_retries: int = OFFSET_RETRIES
    offset_retry_ms: int = OFFSET_RETRY_MS
    #: The consumer group that shows how far the query is, and from which `committed` is taken.
    group: str | None = None
    #: What values are decoded to; None: they are bytes.
    value: ValueOptions | None = None
    #: Whether a stream commits its progress for that group.
    commits: bool = False
    #: Properties for the client, in Kafka's dotted names.
    client: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, options: Mapping[str, str], *, streaming: bool) -> "SourceOptions":
        """Raises: OptionError for the first option that cannot be used."""
        given = _Given(
            options, SOURCE_OPTIONS + (STREAM_OPTIONS if streaming else BATCH_OPTIONS), what="stream" if streaming else "batch read"
        )
        given.refuse_elsewhere(BATCH_OPTIONS if streaming else STREAM_OPTIONS, streaming=streaming)
        subscription = _subscription(given)
        starting = _starting(given, streaming=streaming)
        ending = Position(special=LATEST) if streaming else _ending(given)
        for name, position in (("startingOffsets", starting), ("endingOffsets", ending)):
            _refuse_foreign_topics(name, position, subscription)
        parsed = cls(
            bootstrap=given.bootstrap(),
            subscription=subscription,
            starting=starting,
            ending=ending,
            unmatched_start=given.choice("startingOffsetsByTimestampStrategy", ("error", "latest")),
            on_data_loss=_on_data_loss(given),
            loss_report_to=given.path("dataLossReportTo"),
            include_headers=given.boolean("includeHeaders", False),
            poll_timeout_ms=given.number("kafkaConsumer.pollTimeoutMs") or POLL_TIMEOUT_MS,
            tasks_min=given.number("minPartitions"),
            records_per_task_max=given.number("maxRecordsPerPartition"),
            records_per_trigger_max=given.number("maxOffsetsPerTrigger"),
            records_per_trigger_min=given.number("minOffsetsPerTrigger"),
            trigger_delay_max_ms=given.duration_ms("maxTriggerDelay", 15 * MINUTE_MS),
            offset_retries=given.number("fetchOffset.numRetries", least=0, default=OFFSET_RETRIES),
            offset_retry_ms=given.number("fetchOffset.retryIntervalMs", least=0, default=OFFSET_RETRY_MS),
            group=given.text("kafka.group.id"),
            value=value_options(given),
            commits=streaming and _commits(given),
            client={name: value for name, value in given.client_properties().items() if name != RESET},
        )
        _refuse_contradictions(given, parsed)
        return parsed


def decoded_value(options: Mapping[str, str]) -> tuple[ValueOptions | None, tuple[str, ...]]:
    """How values are decoded, and the topics that are named, of options of any kind of query. Raises: OptionError."""
    if not any(name.lower() == "valueformat" for name in options):
        return None, ()
    given = _Given(options, SOURCE_OPTIONS + STREAM_OPTIONS + BATCH_OPTIONS, what="read")
    subscription = _subscription(given)
    return value_options(given), subscription.topics or tuple(dict.fromkeys(tp.topic for tp in subscription.partitions))


class _Given:
    """The options as given, by lower-case name, with typed look-ups that refuse by name."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...], *, what: str) -> None:
        self.what = what
        self.values: dict[str, str] = {}
        names = {name.lower(): name for name in known}
        everywhere = {name.lower() for name in (*SOURCE_OPTIONS, *STREAM_OPTIONS, *BATCH_OPTIONS)}
        for raw, value in options.items():
            key = raw.lower()
            if key in FORBIDDEN and not (key == f"kafka.{RESET}" and _starts_committed(options)):
                raise OptionError(raw, f"may not be set; {FORBIDDEN[key]}")
            if key == "path":
                raise OptionError("path", "a topic has no path; call load() without one and name the topic with subscribe")
            if key in SPARKS_OWN:
                continue
            if key not in names and not key.startswith("kafka.") and not (what != "write" and key in everywhere):
                raise OptionError(raw, f"is not an option of a {what}{suggestion(raw, known)}; known are {', '.join(known)} and kafka.*")
            self.values[key] = str(value)

    def refuse(self, name: str, problem: str) -> OptionError:
        """What to raise over an option."""
        return OptionError(name, problem)

    def refuse_elsewhere(self, names: tuple[str, ...], *, streaming: bool) -> None:
        for name in names:
            if name.lower() in self.values:
                right = (
                    "a batch read (spark.read); a stream has no end"
                    if streaming
                    else "a stream (spark.readStream); use endingOffsets to read less"
                )
                raise OptionError(name, f"is only for {right}")

    def text(self, name: str) -> str | None:
        value = self.values.get(name.lower())
        if value is not None and not value.strip():
            raise OptionError(name, "is empty; give it a value or leave it out")
        return value.strip() if value is not None else None

    def path(self, name: str) -> str | None:
        """The path of a local file."""
        value = self.text(name)
        try:
            return None if value is None else local_path(value)
        except NotLocal as error:
            raise OptionError(name, str(error)) from None

    def boolean(self, name: str, default: bool) -> bool:
        value = self.values.get(name.lower(), str(default)).strip().lower()
        if value not in ("true", "false"):
            raise OptionError(name, f"expected true or false, not {value!r}")
        return value == "true"

    @overload
    def number(self, name: str) -> int | None: ...
    @overload
    def number(self, name: str, *, least: int, default: int) -> int: ...
    def number(self, name: str, *, least: int = 1, default: int | None = None) -> int | None:
        """A whole number of at least `least`."""
        value = self.text(name)
        if value is None:
            return default
        if not value.isdigit() or int(value) < least:
            raise OptionError(name, f"expected a whole number above {least - 1}, not {value!r}")
        return int(value)

    def duration_ms(self, name: str, default: int) -> int:
        value = self.text(name)
        if value is None:
            return default
        match = DURATION.fullmatch(value)
        if match is None:
            raise OptionError(name, f"expected a time such as 30s, 15m or 1h, not {value!r}")
        unit = (match[2] or "ms").lower()
        scale = 1 if unit.startswith(("ms", "milli")) else MS_OF[unit[0]]
        return int(match[1]) * scale

    def choice(self, name: str, choices: tuple[str, ...]) -> Any:
        """One of `choices`; the first is the default."""
        value = (self.text(name) or choices[0]).lower()
        if value not in choices:
            raise OptionError(name, f"expected {' or '.join(choices)}, not {value!r}")
        return value

    def json(self, name: str, parse: Callable[[Any], Any]) -> Any:
        try:
            return parse(json.loads(self.values[name.lower()]))
        except OffsetsError as error:
            raise OptionError(name, str(error)) from None
        except ValueError:
            raise OptionError(name, f"is not JSON: {self.values[name.lower()]!r}") from None

    def bootstrap(self) -> str:
        plain, prefixed = self.text("bootstrap.servers"), self.text("kafka.bootstrap.servers")
        if plain and prefixed and plain != prefixed:
            raise OptionError("bootstrap.servers", "differs from kafka.bootstrap.servers; give only one of them")
        if not (plain or prefixed):
            raise OptionError("kafka.bootstrap.servers", "is missing; give the address of a broker, such as 127.0.0.1:9092")
        servers = plain or prefixed or ""
        if problem := address_problem(servers):
            raise OptionError("kafka.bootstrap.servers" if prefixed else "bootstrap.servers", problem)
        return servers

    def client_properties(self) -> dict[str, str]:
        """Raises: OptionError for what needs a listener that this client cannot use."""
        found = {}
        for key, value in self.values.items():
            name = key.removeprefix("kafka.")
            if name == key or name == "bootstrap.servers" or name in JAVAS_OWN:
                continue
            if name == "security.protocol" and value.strip().upper() == "PLAINTEXT":
                continue
            if name == "security.protocol" or name.startswith(("ssl.", "sasl.")):
                raise OptionError(key, "this client speaks neither TLS nor SASL yet; name a PLAINTEXT listener, and leave this out")
            found[name] = value
        return found


def _subscription(given: _Given) -> Subscription:
    chosen = [name for name in SUBSCRIPTIONS if name.lower() in given.values]
    if not chosen:
        raise OptionError("subscribe", "is missing; name the topics with subscribe, subscribePattern or assign")
    if len(chosen) > 1:
        raise OptionError(chosen[1], f"contradicts {chosen[0]}; give exactly one of {', '.join(SUBSCRIPTIONS)}")
    match chosen[0]:
        case "assign":
            partitions = given.json("assign", _assigned)
            return Subscription("assign", partitions=partitions)
        case "subscribe":
            topics = tuple(dict.fromkeys(name.strip() for name in (given.text("subscribe") or "").split(",") if name.strip()))
            if not topics:
                raise OptionError("subscribe", "names no topic; expected names with commas between")
            return Subscription("subscribe", topics=topics)
        case _:
            pattern = given.text("subscribePattern") or ""
            try:
                re.compile(pattern)
            except re.error as error:
                raise OptionError("subscribePattern", f"is not a regular expression: {error}") from None
            return Subscription("subscribePattern", pattern=pattern)


def _assigned(nested: Any) -> tuple[TopicPartition, ...]:
    expected = OffsetsError('expected {"topic": [partitions]}, such as {"orders": [0, 1]}')
    if not isinstance(nested, dict) or not nested:
        raise expected
    found: set[TopicPartition] = set()
    for topic, partitions in nested.items():
        if not isinstance(partitions, list) or not all(type(number) is int and number >= 0 for number in partitions):
            raise expected
        found.update(TopicPartition(topic, number) for number in partitions)
    if not found:
        raise OffsetsError("names no partition")
    return tuple(sorted(found))


def _starting(given: _Given, *, streaming: bool) -> Position:
    by_time = _by_time(given, "starting")
    if by_time is not None:
        return by_time
    text = (given.text("startingOffsets") or ("latest" if streaming else "earliest")).lower()
    if text == "earliest":
        return Position(special=EARLIEST)
    if text == COMMITTED:
        return _committed(given)
    if text == "latest":
        if not streaming:
            raise OptionError("startingOffsets", "latest reads nothing in a batch; use earliest, JSON, or spark.readStream")
        return Position(special=LATEST)
    offsets = given.json("startingOffsets", from_json)
    for tp, offset in offsets.items():
        if offset < EARLIEST:
            raise OptionError("startingOffsets", f"{tp}: offset {offset} does not exist; -2 is the earliest, -1 the latest")
        if offset == LATEST and not streaming:
            raise OptionError("startingOffsets", f"{tp}: -1 (latest) reads nothing in a batch; use -2 or an offset")
    return Position(offsets=offsets)


def _starts_committed(options: Mapping[str, str]) -> bool:
    return any(name.lower() == "startingoffsets" and str(value).strip().lower() == COMMITTED for name, value in options.items())


def _committed(given: _Given) -> Position:
    if given.text("kafka.group.id") is None:
        raise OptionError("startingOffsets", "committed are the offsets of a consumer group; name it with kafka.group.id")
    resets: dict[str, int | None] = {"earliest": EARLIEST, "latest": LATEST, "none": None}
    return Position(committed=True, special=resets[given.choice(f"kafka.{RESET}", tuple(resets))])


def _commits(given: _Given) -> bool:
    """A group that was named is told of progress unless the user says otherwise."""
    group = given.text("kafka.group.id")
    commits = given.boolean("commitOffsets", group is not None)
    if commits and group is None:
        raise OptionError("commitOffsets", "needs the consumer group to commit for; name it with kafka.group.id")
    return commits


def _on_data_loss(given: _Given) -> OnDataLoss:
    """onDataLoss, or what failOnDataLoss says of the first two of its three."""
    fails = given.boolean("failOnDataLoss", True)
    if given.text("onDataLoss") is None:
        return "fail" if fails else "warn"
    chosen: OnDataLoss = given.choice("onDataLoss", ("fail", "warn", "skip"))
    if "failondataloss" in given.values and fails != (chosen == "fail"):
        raise OptionError("onDataLoss", f"{chosen} contradicts failOnDataLoss {str(fails).lower()}; give only one of them")
    return chosen


def _ending(given: _Given) -> Position:
    by_time = _by_time(given, "ending")
    if by_time is not None:
        return by_time
    text = (given.text("endingOffsets") or "latest").lower()
    if text == "latest":
        return Position(special=LATEST)
    if text == "earliest":
        raise OptionError("endingOffsets", "earliest would read nothing; use latest or JSON")
    offsets = given.json("endingOffsets", from_json)
    for tp, offset in offsets.items():
        if offset < LATEST:
            raise OptionError("endingOffsets", f"{tp}: offset {offset} cannot be an end; -1 is the latest")
    return Position(offsets=offsets)


def _by_time(given: _Given, prefix: str) -> Position | None:
    single = given.text(f"{prefix}Timestamp")
    if single is not None:
        if not single.isdigit():
            raise OptionError(f"{prefix}Timestamp", f"expected milliseconds since 1970, not {single!r}")
        return Position(timestamp_ms=int(single))
    if f"{prefix}OffsetsByTimestamp".lower() not in given.values:
        return None
    times = given.json(f"{prefix}OffsetsByTimestamp", from_json)
    for tp, time_ms in times.items():
        if time_ms < 0:
            raise OptionError(f"{prefix}OffsetsByTimestamp", f"{tp}: expected milliseconds since 1970, not {time_ms}")
    if not times:
        raise OptionError(f"{prefix}OffsetsByTimestamp", "names no partition")
    return Position(timestamps_ms=times)


def _refuse_foreign_topics(name: str, position: Position, subscription: Subscription) -> None:
    """Offsets of a topic that is not subscribed are a slip of the pen."""
    for tp in (*position.offsets, *position.timestamps_ms):
        known = tp in subscription.partitions if subscription.kind == "assign" else tp.topic in subscription.topics
        if subscription.kind != "subscribePattern" and not known:
            raise OptionError(name, f"{tp} is not among what {subscription.kind} names")


def _refuse_contradictions(given: _Given, parsed: SourceOptions) -> None:
    least, most = parsed.records_per_trigger_min, parsed.records_per_trigger_max
    if least is not None and most is not None and least > most:
        raise OptionError("minOffsetsPerTrigger", f"{least} is more than maxOffsetsPerTrigger ({most})")
    if "maxtriggerdelay" in given.values and least is None:
        raise OptionError("maxTriggerDelay", "only has a meaning together with minOffsetsPerTrigger; set that too")
    if "startingoffsetsbytimestampstrategy" in given.values and not parsed.starting.by_time:
        raise OptionError("startingOffsetsByTimestampStrategy", "only has a meaning with startingTimestamp or startingOffsetsByTimestamp")
