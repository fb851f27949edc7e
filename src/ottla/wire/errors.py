"""Kafka's error codes, one class each: the number on the wire, whether a retry may help, and a sentence that explains it.

A class is named after Kafka's constant: NOT_LEADER_OR_FOLLOWER is `NotLeaderOrFollower` (INVALID_TOPIC_EXCEPTION is `InvalidTopic`,
NETWORK_EXCEPTION is `NetworkError`). A broker raises one and returns it for the smallest unit that failed; a client raises the same class.
"Retriable" has Kafka's meaning: the same request may succeed later, perhaps after a refresh of the metadata.

Source: Errors in Apache Kafka 4.4, codes -1 to 136.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import ClassVar

#: The code of success. It has no class.
NONE = 0


#: Longest message of an error. A message quotes names from a request. A name may have 32,767 bytes, which is also the limit of a string
#: in a response. One character has at most four bytes.
MESSAGE_CHARS_MAX = 4_000


def _bounded(message: str) -> str:
    """Keep the beginning and the end of a message: the middle is a quoted name, and the advice comes last."""
    begin, end = MESSAGE_CHARS_MAX * 3 // 4, MESSAGE_CHARS_MAX // 4
    return f"{message[:begin]}... ({len(message) - begin - end} characters left out) ...{message[-end:]}"


class ErrorKind(Enum):
    """What the user of a transactional producer does about an error. Source: KIP-1050."""

    #: Call again. Clients retry by themselves first.
    RETRIABLE = "retriable"
    #: Abort the transaction and do it again, with the same producer.
    ABORTABLE = "abortable"
    #: Close the producer, and the consumer if the error is about the group. Create new ones, which continue after the last commit.
    APPLICATION_RECOVERABLE = "application recoverable"
    #: Correct a setting, a permission or the record; then start again.
    INVALID_CONFIGURATION = "invalid configuration"


class KafkaError(Exception):
    """Any error that can cross the wire. `str()` returns the message if there is one, else the sentence of its class."""

    #: The number on the wire.
    code: ClassVar[int] = -1
    #: Whether the same request may succeed later.
    retriable: ClassVar[bool] = False
    #: What the user of a transactional producer does about it. Errors without a kind in KIP-1050 abort the transaction.
    kind: ClassVar[ErrorKind] = ErrorKind.ABORTABLE
    #: General description: the first line of the class's docstring.
    sentence: ClassVar[str] = "Something failed."
    #: Kafka's constant.
    constant: ClassVar[str] = "UNKNOWN_SERVER_ERROR"

    def __init_subclass__(cls, code: int | None = None, retriable: bool = False, kind: ErrorKind | None = None) -> None:
        if kind is not None or code is not None:
            cls.kind = kind or (ErrorKind.RETRIABLE if retriable else ErrorKind.ABORTABLE)
        if code is None:
            return  # A more specific error of Ottla. On the wire it has the code of its base class.
        cls.code = code
        cls.retriable = retriable
        cls.constant = _CONSTANTS.get(cls.__name__) or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).upper()
        cls.sentence = cls.__doc__ or cls.constant
        BY_CODE[code] = cls

    def __init__(self, message: str | None = None) -> None:
        if message is not None and len(message) > MESSAGE_CHARS_MAX:
            message = _bounded(message)
        super().__init__(message or self.sentence)
        #: Details of this error, or None; at most about ``MESSAGE_CHARS_MAX`` characters.
        self.message = message


#: Class of each error code except 0 (success).
BY_CODE: dict[int, type[KafkaError]] = {}
_CONSTANTS = {"InvalidTopic": "INVALID_TOPIC_EXCEPTION", "NetworkError": "NETWORK_EXCEPTION"}


def error_for(code: int, message: str | None = None) -> KafkaError:
    """Return the error of a code other than 0. An unknown code becomes an UnknownServerError with the code in its message."""
    cls = BY_CODE.get(code)
    if cls is None:
        return UnknownServerError(f"error code {code}" if message is None else f"error code {code}: {message}")
    return cls(message)


class UnknownServerError(KafkaError, code=-1):
    """The broker failed with an unexpected error; its log has the details."""


class OffsetOutOfRange(KafkaError, code=1):
    """No record has this offset: it is before the start of the log or past its end."""


class CorruptMessage(KafkaError, code=2, retriable=True):
    """The batch is damaged: its checksum does not match, or its structure is invalid."""


class UnknownTopicOrPartition(KafkaError, code=3, retriable=True):
    """This broker knows no such topic, or the topic has no such partition."""


class InvalidFetchSize(KafkaError, code=4):
    """The number of bytes to fetch is invalid."""


class LeaderNotAvailable(KafkaError, code=5, retriable=True):
    """The partition has no leader at the moment."""


class NotLeaderOrFollower(KafkaError, code=6, retriable=True):
    """This broker does not lead the partition, or holds no replica of it; ask for metadata again."""


class RequestTimedOut(KafkaError, code=7, retriable=True):
    """The request was not completed within its timeout."""


class BrokerNotAvailable(KafkaError, code=8):
    """The broker is not available."""


class ReplicaNotAvailable(KafkaError, code=9, retriable=True):
    """The broker has no replica of this partition that can be read now."""


class MessageTooLarge(KafkaError, code=10):
    """The batch is larger than the topic's max.message.bytes."""


class StaleControllerEpoch(KafkaError, code=11):
    """The request comes from a controller that has been replaced."""


class OffsetMetadataTooLarge(KafkaError, code=12):
    """The metadata committed with an offset is too long."""


class NetworkError(KafkaError, code=13, retriable=True):
    """The connection was lost before the response arrived."""


class CoordinatorLoadInProgress(KafkaError, code=14, retriable=True):
    """The coordinator is still reading its state from the log."""


class CoordinatorNotAvailable(KafkaError, code=15, retriable=True):
    """The group or transaction has no coordinator at the moment."""


class NotCoordinator(KafkaError, code=16, retriable=True):
    """This broker does not coordinate this group or transaction; find the coordinator again."""


class InvalidTopic(KafkaError, code=17, kind=ErrorKind.INVALID_CONFIGURATION):
    """The topic's name is not allowed, or the topic is internal and closed to clients."""


class RecordListTooLarge(KafkaError, code=18, kind=ErrorKind.INVALID_CONFIGURATION):
    """The batch does not fit into a segment of the log."""


class NotEnoughReplicas(KafkaError, code=19, retriable=True):
    """Fewer replicas are in sync than min.insync.replicas requires; nothing was written."""


class NotEnoughReplicasAfterAppend(KafkaError, code=20, retriable=True):
    """The batch was written, but the replicas in sync then fell below min.insync.replicas."""


class InvalidRequiredAcks(KafkaError, code=21, kind=ErrorKind.INVALID_CONFIGURATION):
    """acks is not 0, 1 or -1."""


class IllegalGeneration(KafkaError, code=22, kind=ErrorKind.APPLICATION_RECOVERABLE):
    """The generation in the request is not the group's current one."""


class InconsistentGroupProtocol(KafkaError, code=23):
    """The member shares no protocol with the other members of the group, or names none."""


class InvalidGroupId(KafkaError, code=24):
    """The group's id is empty, or otherwise not allowed."""


class UnknownMemberId(KafkaError, code=25, kind=ErrorKind.APPLICATION_RECOVERABLE):
    """The group has no member with this id."""


class InvalidSessionTimeout(KafkaError, code=26):
    """The session timeout is outside the range that the broker allows."""


class RebalanceInProgress(KafkaError, code=27):
    """The group is rebalancing: the member must rejoin."""


class InvalidCommitOffsetSize(KafkaError, code=28):
    """An offset commit is larger than allowed."""


class TopicAuthorizationFailed(KafkaError, code=29, kind=ErrorKind.INVALID_CONFIGURATION):
    """The client has no permission for this operation on the topic; an administrator can grant it with an ACL."""


class GroupAuthorizationFailed(KafkaError, code=30, kind=ErrorKind.INVALID_CONFIGURATION):
    """The client has no permission for this operation on the group; an administrator can grant it with an ACL."""


class ClusterAuthorizationFailed(KafkaError, code=31, kind=ErrorKind.INVALID_CONFIGURATION):
    """The client has no permission for this operation on the cluster; an administrator can grant it with an ACL."""


class InvalidTimestamp(KafkaError, code=32):
    """A record's timestamp is too far from the broker's clock, or is of a kind that clients may not set."""


class UnsupportedSaslMechanism(KafkaError, code=33, kind=ErrorKind.INVALID_CONFIGURATION):
    """The broker does not offer this SASL mechanism."""


class IllegalSaslState(KafkaError, code=34, kind=ErrorKind.INVALID_CONFIGURATION):
    """This request is not allowed at this point of the authentication."""


class UnsupportedVersion(KafkaError, code=35, kind=ErrorKind.INVALID_CONFIGURATION):
    """The broker does not support this version of the request, or of a feature that it uses."""


class TopicAlreadyExists(KafkaError, code=36):
    """A topic with this name already exists."""


class InvalidPartitions(KafkaError, code=37):
    """The number of partitions is below one, or not above the topic's current number."""


class InvalidReplicationFactor(KafkaError, code=38, kind=ErrorKind.INVALID_CONFIGURATION):
    """The replication factor is below one, or above the number of live brokers."""


class InvalidReplicaAssignment(KafkaError, code=39):
    """The assignment of replicas to brokers is inconsistent."""


class InvalidConfig(KafkaError, code=40):
    """A setting is unknown, or its value is not allowed."""


class NotController(KafkaError, code=41, retriable=True):
    """This broker is not the controller; ask for metadata again."""


class InvalidRequest(KafkaError, code=42):
    """The request is inconsistent, or a required field is missing."""


class UnsupportedForMessageFormat(KafkaError, code=43, kind=ErrorKind.INVALID_CONFIGURATION):
    """The old message format of these batches does not support the request."""


class PolicyViolation(KafkaError, code=44):
    """A policy of this cluster forbids it."""


class OutOfOrderSequenceNumber(KafkaError, code=45):
    """The batch's sequence number does not follow the producer's last one."""


class DuplicateSequenceNumber(KafkaError, code=46):
    """The batch was already appended, but its offset is no longer known."""


class InvalidProducerEpoch(KafkaError, code=47, kind=ErrorKind.APPLICATION_RECOVERABLE):
    """A newer epoch of this producer id has written to the partition."""


class InvalidTxnState(KafkaError, code=48):
    """The transaction is not in a state that allows this."""


class InvalidProducerIdMapping(KafkaError, code=49, kind=ErrorKind.APPLICATION_RECOVERABLE):
    """The producer id does not belong to this transactional id."""


class InvalidTransactionTimeout(KafkaError, code=50, kind=ErrorKind.INVALID_CONFIGURATION):
    """The transaction's timeout is above transaction.max.timeout.ms, or not positive."""


class ConcurrentTransactions(KafkaError, code=51, retriable=True):
    """Another change to this transaction is in progress."""


class TransactionCoordinatorFenced(KafkaError, code=52):
    """The transaction's coordinator has been replaced by a newer one."""


class TransactionalIdAuthorizationFailed(KafkaError, code=53, kind=ErrorKind.INVALID_CONFIGURATION):
    """The client may not use this transactional id."""


class SecurityDisabled(KafkaError, code=54):
    """Access control is not enabled on this broker."""


class OperationNotAttempted(KafkaError, code=55):
    """This part was not attempted, because another part of the same request failed."""


class KafkaStorageError(KafkaError, code=56, retriable=True):
    """The disk under the log failed."""


class LogDirNotFound(KafkaError, code=57):
    """The broker has no such log directory."""


class SaslAuthenticationFailed(KafkaError, code=58, kind=ErrorKind.INVALID_CONFIGURATION):
    """The credentials were not accepted."""


class UnknownProducerId(KafkaError, code=59):
    """The broker has no state for this producer id: its records were deleted, or its state expired."""


class ReassignmentInProgress(KafkaError, code=60):
    """A reassignment of the partition is already in progress."""


class DelegationTokenAuthDisabled(KafkaError, code=61):
    """Delegation tokens are not enabled."""


class DelegationTokenNotFound(KafkaError, code=62):
    """The delegation token does not exist."""


class DelegationTokenOwnerMismatch(KafkaError, code=63):
    """The principal neither owns this delegation token nor may renew it."""


class DelegationTokenRequestNotAllowed(KafkaError, code=64):
    """Delegation tokens need a connection that is authenticated by SASL or a TLS client certificate, and not by a token."""


class DelegationTokenAuthorizationFailed(KafkaError, code=65, kind=ErrorKind.INVALID_CONFIGURATION):
    """The client has no permission for this operation on delegation tokens."""


class DelegationTokenExpired(KafkaError, code=66):
    """The delegation token has expired."""


class InvalidPrincipalType(KafkaError, code=67):
    """The type of the principal is unknown."""


class NonEmptyGroup(KafkaError, code=68):
    """The group still has members."""


class GroupIdNotFound(KafkaError, code=69):
    """The group does not exist."""


class FetchSessionIdNotFound(KafkaError, code=70, retriable=True):
    """The broker does not have this fetch session, or has evicted it; open a new one."""


class InvalidFetchSessionEpoch(KafkaError, code=71, retriable=True):
    """The fetch session is at another epoch; open a new one."""


class ListenerNotFound(KafkaError, code=72, retriable=True):
    """The leader has no listener with the name of the one that received this request."""


class TopicDeletionDisabled(KafkaError, code=73):
    """Topics cannot be deleted: delete.topic.enable is false."""


class FencedLeaderEpoch(KafkaError, code=74, retriable=True):
    """The client's leader epoch is out of date; refresh the metadata."""


class UnknownLeaderEpoch(KafkaError, code=75, retriable=True):
    """The client's leader epoch is newer than the one that this broker knows."""


class UnsupportedCompressionType(KafkaError, code=76):
    """This version of the request does not support the batch's compression."""


class StaleBrokerEpoch(KafkaError, code=77):
    """The request carries an old broker epoch: the broker has registered again since."""


class OffsetNotAvailable(KafkaError, code=78, retriable=True):
    """A newly elected leader does not know the last committed offset yet."""


class MemberIdRequired(KafkaError, code=79):
    """The member must join again with the member id of this response."""


class PreferredLeaderNotAvailable(KafkaError, code=80, retriable=True):
    """The preferred leader is not available for election."""


class GroupMaxSizeReached(KafkaError, code=81):
    """The group is full."""


class FencedInstanceId(KafkaError, code=82, kind=ErrorKind.APPLICATION_RECOVERABLE):
    """Another member has taken over this group.instance.id."""


class EligibleLeadersNotAvailable(KafkaError, code=83, retriable=True):
    """No eligible replica is available for election."""


class ElectionNotNeeded(KafkaError, code=84, retriable=True):
    """No election is needed: the partition already has this leader."""


class NoReassignmentInProgress(KafkaError, code=85):
    """No reassignment of the partition is in progress."""


class GroupSubscribedToTopic(KafkaError, code=86):
    """The group still subscribes to this topic."""


class InvalidRecord(KafkaError, code=87):
    """A record, or the batch around it, breaks a rule of the broker or of the topic."""


class UnstableOffsetCommit(KafkaError, code=88, retriable=True):
    """Some of these offsets belong to a transaction that is still open."""


class ThrottlingQuotaExceeded(KafkaError, code=89, retriable=True):
    """The client has exceeded its quota; retry later."""


class ProducerFenced(KafkaError, code=90, kind=ErrorKind.APPLICATION_RECOVERABLE):
    """A newer producer of the same transactional id has taken over."""


class ResourceNotFound(KafkaError, code=91):
    """The resource does not exist."""


class DuplicateResource(KafkaError, code=92):
    """The request names the same resource twice."""


class UnacceptableCredential(KafkaError, code=93):
    """The credential does not meet the rules for credentials."""


class InconsistentVoterSet(KafkaError, code=94):
    """The sets of voters do not match."""


class InvalidUpdateVersion(KafkaError, code=95):
    """The partition's state has changed in the meantime."""


class FeatureUpdateFailed(KafkaError, code=96):
    """The features could not be changed."""


class PrincipalDeserializationFailure(KafkaError, code=97):
    """The principal of a forwarded request could not be read."""


class SnapshotNotFound(KafkaError, code=98):
    """The snapshot does not exist."""


class PositionOutOfRange(KafkaError, code=99):
    """The snapshot ends before this position."""


class UnknownTopicId(KafkaError, code=100, retriable=True):
    """This broker knows no topic with this id."""


class DuplicateBrokerRegistration(KafkaError, code=101):
    """A live broker with this id is already registered."""


class BrokerIdNotRegistered(KafkaError, code=102):
    """No broker with this id is registered."""


class InconsistentTopicId(KafkaError, code=103, retriable=True):
    """The topic's id differs from the log's: the topic was deleted and created again."""


class InconsistentClusterId(KafkaError, code=104):
    """The request is for another cluster."""


class TransactionalIdNotFound(KafkaError, code=105):
    """The transactional id does not exist."""


class FetchSessionTopicIdError(KafkaError, code=106, retriable=True):
    """The fetch session mixes topics by name with topics by id."""


class IneligibleReplica(KafkaError, code=107):
    """One of the brokers cannot join the ISR now."""


class NewLeaderElected(KafkaError, code=108):
    """The change was applied, and it elected another leader for the partition."""


class OffsetMovedToTieredStorage(KafkaError, code=109):
    """The offset is no longer on this broker's disk, only in tiered storage."""


class FencedMemberEpoch(KafkaError, code=110, kind=ErrorKind.APPLICATION_RECOVERABLE):
    """The group has fenced this member: it must give up its partitions and rejoin."""


class UnreleasedInstanceId(KafkaError, code=111):
    """Another member still holds this instance id."""


class UnsupportedAssignor(KafkaError, code=112):
    """The group does not support this assignor."""


class StaleMemberEpoch(KafkaError, code=113):
    """The member's epoch is out of date; the next heartbeat brings the new one."""


class MismatchedEndpointType(KafkaError, code=114):
    """The request went to the wrong kind of endpoint."""


class UnsupportedEndpointType(KafkaError, code=115):
    """This kind of endpoint is not supported."""


class UnknownControllerId(KafkaError, code=116):
    """The controller id is unknown."""


class UnknownSubscriptionId(KafkaError, code=117):
    """The telemetry subscription is unknown or out of date."""


class TelemetryTooLarge(KafkaError, code=118):
    """The telemetry is larger than the broker allows."""


class InvalidRegistration(KafkaError, code=119):
    """The registration was refused."""


class TransactionAbortable(KafkaError, code=120):
    """The transaction must be aborted; the producer can continue after that."""


class InvalidRecordState(KafkaError, code=121):
    """The record's state does not allow an acknowledgement."""


class ShareSessionNotFound(KafkaError, code=122, retriable=True):
    """The share session does not exist."""


class InvalidShareSessionEpoch(KafkaError, code=123, retriable=True):
    """The share session is at another epoch."""


class FencedStateEpoch(KafkaError, code=124):
    """The share group's state is at another epoch."""


class InvalidVoterKey(KafkaError, code=125):
    """The voter's key is not the one of this replica."""


class DuplicateVoter(KafkaError, code=126):
    """The voter already exists."""


class VoterNotFound(KafkaError, code=127):
    """The voter does not exist."""


class InvalidRegularExpression(KafkaError, code=128):
    """The regular expression is invalid."""


class RebootstrapRequired(KafkaError, code=129):
    """The client's metadata is of another cluster: it must connect to its bootstrap servers again."""


class StreamsInvalidTopology(KafkaError, code=130):
    """The topology is not valid."""


class StreamsInvalidTopologyEpoch(KafkaError, code=131):
    """The topology's epoch is not valid."""


class StreamsTopologyFenced(KafkaError, code=132):
    """The topology has been replaced by a newer one."""


class ShareSessionLimitReached(KafkaError, code=133, retriable=True):
    """The broker has reached its limit of share sessions."""


class GroupDeletionFailed(KafkaError, code=134):
    """The group could not be deleted."""


class StreamsTopologyDescriptionUpdateFailed(KafkaError, code=135):
    """The description of the topology could not be stored."""


class ControllerIdNotRegistered(KafkaError, code=136):
    """There is no registered controller with this id."""
