"""Options of a read from ``format("ottla")``, named as in Spark's own Kafka source. Pure: no Spark, no network.

Option names are not case-sensitive, as in Spark. An unknown option, a contradiction or an invalid value is an error before anything is
read. The error names the option and what to write instead: a misspelt option that is ignored could lose data.

Starting position, first match wins:  startingTimestamp, startingOffsetsByTimestamp, startingOffsets
Ending position, the same order:      endingTimestamp,   endingOffsetsByTimestamp,   endingOffsets

Decoding of values, for each valueFormat:

    valueFormat     json              avro                   csv               protobuf                json-schema
    valueSchema     columns as DDL    Avro's, as JSON        columns as DDL                            columns as DDL
    or              .schema(...)      schema.registry.url    .schema(...)      schema.registry.url     schema.registry.url (always)
    or                                                                         valueDescriptor (a file)
    besides                           valueSubject           valueSeparator    valueMessage            valueSubject
                                                             valueNull         valueSubject
    valueMode       permissive, dropmalformed or failfast, for all of them

With `schema.registry.url` values have a registry's frame: a zero byte, the schema's id in four bytes, the value.

Source: the Structured Streaming and Kafka integration guide of Spark 4, SPARK-49259 (maxRecordsPerPartition).
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, overload

from ottla.base.ids import TopicPartition
from ottla.base.options import ConfigError, suggestion
from ottla.base.paths import NotLocal, local_path
from ottla.client.options import address_problem
from ottla.spark.cluster_profile import profile_cluster
from ottla.spark.source.data_loss import OnDataLoss
from ottla.spark.source.offset_ranges import EARLIEST, LATEST, OffsetsError, from_json

MINUTE_MS = 60_000
#: Spark's spark.network.timeout: the default of pollTimeoutMs in its Kafka source.
POLL_TIMEOUT_MS = 120_000
#: Retries of the driver's offset queries, and the ms between two of them.
OFFSET_RETRIES, OFFSET_RETRY_MS = 3, 10

VALUE_FORMATS = ("json", "avro", "csv", "protobuf", "json-schema")
VALUE_MODES = ("permissive", "dropmalformed", "failfast")
#: The options of each format besides valueFormat and valueMode.
OF_VALUE_FORMAT = {
    "json": ("valueSchema",),
    "avro": ("valueSchema", "schema.registry.url", "valueSubject"),
    "csv": ("valueSchema", "valueSeparator", "valueNull"),
    "protobuf": ("valueDescriptor", "valueMessage", "schema.registry.url", "valueSubject"),
    "json-schema": ("valueSchema", "schema.registry.url", "valueSubject"),
}
VALUE_OPTIONS = ("valueFormat", "valueMode", *dict.fromkeys(name for names in OF_VALUE_FORMAT.values() for name in names))

SUBSCRIPTIONS = ("assign", "subscribe", "subscribePattern")
#: Options of both query types; below those of streams only and of batches only.
SOURCE_OPTIONS = (
    *SUBSCRIPTIONS, "bootstrap.servers", "kafka.bootstrap.servers", "profile",
    "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets", "startingOffsetsByTimestampStrategy",
    "failOnDataLoss", "onDataLoss", "dataLossReportTo", "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries", "fetchOffset.retryIntervalMs",
    "minPartitions", "maxRecordsPerPartition", "groupIdPrefix", "includeHeaders", *VALUE_OPTIONS,
)  # fmt: skip
STREAM_OPTIONS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "commitOffsets")
BATCH_OPTIONS = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
#: Spark passes its own options too.
SPARKS_OWN = frozenset(
    {"checkpointlocation", "queryname", "outputmode", "asyncprogresstrackingenabled", "asyncprogresstrackingcheckpointintervalms"}
)
#: Client properties that would break Spark's guarantees, and what to use instead.
FORBIDDEN = {
    "kafka.auto.offset.reset": "use startingOffsets; it only applies with startingOffsets=committed",
    "kafka.enable.auto.commit": "Spark keeps the offsets in its checkpoint",
    "kafka.key.deserializer": "keys are binary; decode them with SQL",
    "kafka.value.deserializer": "values are binary; decode them with SQL",
    "kafka.key.serializer": "cast the column key to binary or string",
    "kafka.value.serializer": "cast the column value to binary or string",
    "kafka.interceptor.classes": "interceptors are Java classes and cannot run here",
}

#: Ignored settings of the Java client: they do not affect the data.
JAVAS_OWN = frozenset(
    {"connections.max.idle.ms", "client.dns.lookup", "metric.reporters", "metrics.num.samples", "metrics.recording.level",
     "metrics.sample.window.ms", "auto.include.jmx.reporter", "enable.metrics.push"}
)  # fmt: skip

#: Prefixes of settings of the Java client's logins: this one gets a ticket or a token for each session.
JAVAS_LOGIN = ("sasl.login.refresh.", "sasl.login.retry.", "sasl.kerberos.ticket.", "sasl.kerberos.kinit.", "sasl.kerberos.min.time.")
#: Kafka's own class for tokens of OAUTHBEARER, which is built in.
LOGIN_CLASS = "sasl.login.callback.handler.class"
_OAUTH = "org.apache.kafka.common.security.oauthbearer"
KAFKAS_LOGINS = (f"{_OAUTH}.OAuthBearerLoginCallbackHandler", f"{_OAUTH}.secured.OAuthBearerLoginCallbackHandler")

#: Value of startingOffsets: the committed offsets of a consumer group.
COMMITTED = "committed"
#: Kafka's setting for partitions without a committed offset.
RESET = "auto.offset.reset"

MS_OF = {"s": 1_000, "m": MINUTE_MS, "h": 60 * MINUTE_MS, "d": 24 * 60 * MINUTE_MS}
DURATION = re.compile(r"\s*(\d+)\s*(ms|milliseconds?|s|sec|seconds?|m|min|minutes?|h|hours?|d|days?)?\s*", re.IGNORECASE)


class OptionError(ValueError):
    """An invalid option. The message names it and says what to do."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"option {name}: {problem}")
        self.name = name


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which partitions are read; exactly one of three kinds."""

    kind: Literal["assign", "subscribe", "subscribePattern"]
    topics: tuple[str, ...] = ()
    partitions: tuple[TopicPartition, ...] = ()
    #: Must match the whole topic name, as in Java.
    pattern: str = ""


@dataclass(frozen=True, slots=True)
class Position:
    """A position in each partition: the same special offset or time for all, or one per partition."""

    special: int | None = None
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    timestamp_ms: int | None = None
    timestamps_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    #: The group's committed offsets. `special` then applies to partitions without one; None: that is an error.
    committed: bool = False

    @property
    def by_time(self) -> bool:
        return self.timestamp_ms is not None or bool(self.timestamps_ms)


@dataclass(frozen=True, slots=True)
class ValueOptions:
    """The format of values and how malformed ones are handled."""

    format: Literal["json", "avro", "csv", "protobuf", "json-schema"]
    #: `permissive`: null, and the bytes in the column `_corrupt`; `dropmalformed`: no row; `failfast`: the query fails.
    mode: Literal["permissive", "dropmalformed", "failfast"] = "permissive"
    schema: str | None = None
    registry_url: str | None = None
    #: The registry's subject, if it is not TOPIC-value.
    subject: str | None = None
    separator: str = ","
    null: str = ""
    #: A file of protobuf descriptors, as `protoc --descriptor_set_out --include_imports` writes it; read on the driver.
    descriptor: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a batch or streaming read, parsed."""

    bootstrap: str
    subscription: Subscription
    starting: Position
    ending: Position = Position(special=LATEST)
    #: If no record is at or after the starting time: fail, or start at the end.
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
    #: The consumer group for committed starting offsets and for progress.
    group: str | None = None
    #: How values are decoded; None: they stay bytes.
    value: ValueOptions | None = None
    #: Whether a stream commits its progress for `group`.
    commits: bool = False
    #: Properties for the client, in Kafka's dotted names.
    client: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, options: Mapping[str, str], *, streaming: bool) -> "SourceOptions":
        """Raises: OptionError for the first invalid option."""
        raw = RawOptions(
            options, SOURCE_OPTIONS + (STREAM_OPTIONS if streaming else BATCH_OPTIONS), what="stream" if streaming else "batch read"
        )
        raw.refuse_other_query_type(BATCH_OPTIONS if streaming else STREAM_OPTIONS, streaming=streaming)
        subscription = _subscription(raw)
        starting = _starting(raw, streaming=streaming)
        ending = Position(special=LATEST) if streaming else _ending(raw)
        for name, position in (("startingOffsets", starting), ("endingOffsets", ending)):
            _require_subscribed(name, position, subscription)
        parsed = cls(
            bootstrap=raw.bootstrap(),
            subscription=subscription,
            starting=starting,
            ending=ending,
            unmatched_start=raw.choice("startingOffsetsByTimestampStrategy", ("error", "latest")),
            on_data_loss=_on_data_loss(raw),
            loss_report_to=raw.path("dataLossReportTo"),
            include_headers=raw.boolean("includeHeaders", False),
            poll_timeout_ms=raw.number("kafkaConsumer.pollTimeoutMs") or POLL_TIMEOUT_MS,
            tasks_min=raw.number("minPartitions"),
            records_per_task_max=raw.number("maxRecordsPerPartition"),
            records_per_trigger_max=raw.number("maxOffsetsPerTrigger"),
            records_per_trigger_min=raw.number("minOffsetsPerTrigger"),
            trigger_delay_max_ms=raw.duration_ms("maxTriggerDelay", 15 * MINUTE_MS),
            offset_retries=raw.number("fetchOffset.numRetries", least=0, default=OFFSET_RETRIES),
            offset_retry_ms=raw.number("fetchOffset.retryIntervalMs", least=0, default=OFFSET_RETRY_MS),
            group=raw.text("kafka.group.id"),
            value=_value_options(raw),
            commits=streaming and _commits(raw),
            client={name: value for name, value in raw.client_properties().items() if name != RESET},
        )
        _refuse_contradictions(raw, parsed)
        return parsed


def decoded_value(options: Mapping[str, str]) -> tuple[ValueOptions | None, tuple[str, ...]]:
    """The value options and the named topics of any query type. Raises: OptionError."""
    if not any(name.lower() == "valueformat" for name in options):
        return None, ()
    raw = RawOptions(options, SOURCE_OPTIONS + STREAM_OPTIONS + BATCH_OPTIONS, what="read")
    subscription = _subscription(raw)
    return _value_options(raw), subscription.topics or tuple(dict.fromkeys(tp.topic for tp in subscription.partitions))


class RawOptions:
    """Unparsed options by lower-case name, with typed lookups that raise `OptionError`."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...], *, what: str) -> None:
        self.what = what
        self.values: dict[str, str] = {}
        names = {name.lower(): name for name in known}
        everywhere = {name.lower() for name in (*SOURCE_OPTIONS, *STREAM_OPTIONS, *BATCH_OPTIONS)}
        for name, value in options.items():
            key = name.lower()
            if key in FORBIDDEN and not (key == f"kafka.{RESET}" and _starts_committed(options)):
                raise OptionError(name, f"may not be set; {FORBIDDEN[key]}")
            if key == "path":
                raise OptionError("path", "a topic has no path; call load() without one and name the topic with subscribe")
            if key in SPARKS_OWN:
                continue
            if key not in names and not key.startswith("kafka.") and not (what != "write" and key in everywhere):
                raise OptionError(name, f"is not an option of a {what}{suggestion(name, known)}; known are {', '.join(known)} and kafka.*")
            self.values[key] = str(value)
        self._has_profile = False

    def refuse_other_query_type(self, names: tuple[str, ...], *, streaming: bool) -> None:
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

    def _add_profile(self) -> None:
        """Adds the address and the settings of a profile or of the environment, unless brokers are given and no profile is."""
        if self._has_profile:
            return
        self._has_profile = True
        profile = self.text("profile")
        given = self.text("bootstrap.servers") or self.text("kafka.bootstrap.servers")
        if given and profile is None:
            return
        try:
            cluster = profile_cluster(profile)
        except ConfigError as error:
            raise OptionError("profile", str(error)) from None
        if cluster is not None:
            if not given:
                self.values["kafka.bootstrap.servers"] = cluster.bootstrap
            for name, value in cluster.settings.items():
                self.values.setdefault(f"kafka.{name}", value)

    def bootstrap(self) -> str:
        self._add_profile()
        plain, prefixed = self.text("bootstrap.servers"), self.text("kafka.bootstrap.servers")
        if plain and prefixed and plain != prefixed:
            raise OptionError("bootstrap.servers", "differs from kafka.bootstrap.servers; give only one of them")
        if not (plain or prefixed):
            raise OptionError("kafka.bootstrap.servers", "is missing; give the address of a broker, such as 127.0.0.1:9092, or a profile")
        servers = plain or prefixed or ""
        if problem := address_problem(servers):
            raise OptionError("kafka.bootstrap.servers" if prefixed else "bootstrap.servers", problem)
        return servers

    def client_properties(self) -> dict[str, str]:
        """The properties for the client; some hold secrets."""
        self._add_profile()
        found = {}
        for key, value in self.values.items():
            name = key.removeprefix("kafka.")
            if name == key or name == "bootstrap.servers" or name in JAVAS_OWN:
                continue
            if name.startswith(JAVAS_LOGIN) or (name == LOGIN_CLASS and value.strip() in KAFKAS_LOGINS):
                continue
            if name == "security.protocol" and value.strip() == "PLAINTEXT":
                # The default.
                continue
            found[name] = value
        return found


def _subscription(raw: RawOptions) -> Subscription:
    chosen = [name for name in SUBSCRIPTIONS if name.lower() in raw.values]
    if not chosen:
        raise OptionError("subscribe", "is missing; name the topics with subscribe, subscribePattern or assign")
    if len(chosen) > 1:
        raise OptionError(chosen[1], f"contradicts {chosen[0]}; give exactly one of {', '.join(SUBSCRIPTIONS)}")
    match chosen[0]:
        case "assign":
            partitions = raw.json("assign", _assigned)
            return Subscription("assign", partitions=partitions)
        case "subscribe":
            topics = tuple(dict.fromkeys(name.strip() for name in (raw.text("subscribe") or "").split(",") if name.strip()))
            if not topics:
                raise OptionError("subscribe", "names no topic; expected names with commas between")
            return Subscription("subscribe", topics=topics)
        case _:
            pattern = raw.text("subscribePattern") or ""
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


def _starting(raw: RawOptions, *, streaming: bool) -> Position:
    by_time = _by_time(raw, "starting")
    if by_time is not None:
        return by_time
    text = (raw.text("startingOffsets") or ("latest" if streaming else "earliest")).lower()
    if text == "earliest":
        return Position(special=EARLIEST)
    if text == COMMITTED:
        return _committed(raw)
    if text == "latest":
        if not streaming:
            raise OptionError("startingOffsets", "a batch from latest reads nothing; use earliest, JSON, or spark.readStream")
        return Position(special=LATEST)
    offsets = raw.json("startingOffsets", from_json)
    for tp, offset in offsets.items():
        if offset < EARLIEST:
            raise OptionError("startingOffsets", f"{tp}: offset {offset} does not exist; -2 is the earliest, -1 the latest")
        if offset == LATEST and not streaming:
            raise OptionError("startingOffsets", f"{tp}: a batch from -1 (latest) reads nothing; use -2 or an offset")
    return Position(offsets=offsets)


def _starts_committed(options: Mapping[str, str]) -> bool:
    return any(name.lower() == "startingoffsets" and str(value).strip().lower() == COMMITTED for name, value in options.items())


def _committed(raw: RawOptions) -> Position:
    if raw.text("kafka.group.id") is None:
        raise OptionError("startingOffsets", "committed needs a consumer group; name it with kafka.group.id")
    resets: dict[str, int | None] = {"earliest": EARLIEST, "latest": LATEST, "none": None}
    return Position(committed=True, special=resets[raw.choice(f"kafka.{RESET}", tuple(resets))])


def _commits(raw: RawOptions) -> bool:
    """Whether progress is committed. The default is true if a group is named."""
    group = raw.text("kafka.group.id")
    commits = raw.boolean("commitOffsets", group is not None)
    if commits and group is None:
        raise OptionError("commitOffsets", "needs a consumer group; name it with kafka.group.id")
    return commits


def _on_data_loss(raw: RawOptions) -> OnDataLoss:
    """onDataLoss, else fail or warn according to failOnDataLoss."""
    fails = raw.boolean("failOnDataLoss", True)
    if raw.text("onDataLoss") is None:
        return "fail" if fails else "warn"
    chosen: OnDataLoss = raw.choice("onDataLoss", ("fail", "warn", "skip"))
    if "failondataloss" in raw.values and fails != (chosen == "fail"):
        raise OptionError("onDataLoss", f"{chosen} contradicts failOnDataLoss {str(fails).lower()}; give only one of them")
    return chosen


def _ending(raw: RawOptions) -> Position:
    by_time = _by_time(raw, "ending")
    if by_time is not None:
        return by_time
    text = (raw.text("endingOffsets") or "latest").lower()
    if text == "latest":
        return Position(special=LATEST)
    if text == "earliest":
        raise OptionError("endingOffsets", "earliest would read nothing; use latest or JSON")
    offsets = raw.json("endingOffsets", from_json)
    for tp, offset in offsets.items():
        if offset < LATEST:
            raise OptionError("endingOffsets", f"{tp}: offset {offset} cannot be an end; -1 is the latest")
    return Position(offsets=offsets)


def _by_time(raw: RawOptions, prefix: str) -> Position | None:
    single = raw.text(f"{prefix}Timestamp")
    if single is not None:
        if not single.isdigit():
            raise OptionError(f"{prefix}Timestamp", f"expected milliseconds since 1970, not {single!r}")
        return Position(timestamp_ms=int(single))
    if f"{prefix}OffsetsByTimestamp".lower() not in raw.values:
        return None
    times = raw.json(f"{prefix}OffsetsByTimestamp", from_json)
    for tp, time_ms in times.items():
        if time_ms < 0:
            raise OptionError(f"{prefix}OffsetsByTimestamp", f"{tp}: expected milliseconds since 1970, not {time_ms}")
    if not times:
        raise OptionError(f"{prefix}OffsetsByTimestamp", "names no partition")
    return Position(timestamps_ms=times)


def _require_subscribed(name: str, position: Position, subscription: Subscription) -> None:
    """Raises: OptionError for a position in a topic that is not subscribed."""
    for tp in (*position.offsets, *position.timestamps_ms):
        known = tp in subscription.partitions if subscription.kind == "assign" else tp.topic in subscription.topics
        if subscription.kind != "subscribePattern" and not known:
            raise OptionError(name, f"{tp} is not among what {subscription.kind} names")


def _refuse_contradictions(raw: RawOptions, parsed: SourceOptions) -> None:
    least, most = parsed.records_per_trigger_min, parsed.records_per_trigger_max
    if least is not None and most is not None and least > most:
        raise OptionError("minOffsetsPerTrigger", f"{least} is more than maxOffsetsPerTrigger ({most})")
    if "maxtriggerdelay" in raw.values and least is None:
        raise OptionError("maxTriggerDelay", "only applies together with minOffsetsPerTrigger; set that too")
    if "startingoffsetsbytimestampstrategy" in raw.values and not parsed.starting.by_time:
        raise OptionError("startingOffsetsByTimestampStrategy", "only applies with startingTimestamp or startingOffsetsByTimestamp")


def _value_options(raw: RawOptions) -> ValueOptions | None:
    """The value options; None: values stay bytes. Raises: OptionError."""
    if raw.text("valueFormat") is None:
        for name in VALUE_OPTIONS:
            if name.lower() in raw.values:
                raise OptionError(name, f"needs valueFormat, which says how values are decoded: {', '.join(VALUE_FORMATS)}")
        return None
    value_format = raw.choice("valueFormat", VALUE_FORMATS)
    for name in VALUE_OPTIONS[2:]:
        if name.lower() in raw.values and name not in OF_VALUE_FORMAT[value_format]:
            raise OptionError(name, f"does not apply to {value_format}, which has {', '.join(OF_VALUE_FORMAT[value_format])}")
    parsed = ValueOptions(
        format=value_format,
        mode=raw.choice("valueMode", VALUE_MODES),
        schema=raw.text("valueSchema"),
        registry_url=raw.text("schema.registry.url"),
        subject=raw.text("valueSubject"),
        separator=raw.values.get("valueseparator", ","),
        null=raw.values.get("valuenull", ""),
        descriptor=raw.path("valueDescriptor"),
        message=raw.text("valueMessage"),
    )
    if len(parsed.separator) != 1:
        raise OptionError("valueSeparator", f"expected one character, not {parsed.separator!r}")
    _refuse_without_schema(parsed)
    return parsed


def _refuse_without_schema(parsed: ValueOptions) -> None:
    """Raises: OptionError."""
    if parsed.format == "protobuf":
        if parsed.descriptor and parsed.registry_url:
            raise OptionError("valueDescriptor", "and schema.registry.url exclude each other: both say what the messages are")
        if parsed.subject and not parsed.registry_url:
            raise OptionError("valueSubject", "needs schema.registry.url: it names the schemas there")
        if not parsed.registry_url and not (parsed.descriptor and parsed.message):
            missing = "valueMessage" if parsed.descriptor else "valueDescriptor"
            problem = "is missing: protobuf needs a file of descriptors and the full name of a message in it, or schema.registry.url"
            raise OptionError(missing, problem)
    if parsed.format == "json-schema" and not parsed.registry_url:
        raise OptionError("schema.registry.url", 'is missing: these values have a registry\'s frame; without one use valueFormat "json"')
    if parsed.format == "avro" and not (parsed.schema or parsed.registry_url):
        raise OptionError("valueSchema", "is missing: avro needs its schema as JSON, or schema.registry.url")
