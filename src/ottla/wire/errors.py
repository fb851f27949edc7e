"""Kafka's error codes, one class each: the number on the wire, whether trying again may help, and a sentence for people.

A class is named after Kafka's constant: NOT_LEADER_OR_FOLLOWER is `NotLeaderOrFollower` (INVALID_TOPIC_EXCEPTION is `InvalidTopic`,
NETWORK_EXCEPTION is `NetworkError`). A broker raises one and answers it on the smallest unit that failed; a client raises the same class
again. "Retriable" is what Kafka's clients take it to mean: the same request may succeed later, perhaps after asking for new metadata.

Source: Errors in Apache Kafka 4.3, codes -1 to 133.
"""

from __future__ import annotations

import re
from typing import ClassVar

#: The code of success, which is no error and has no class.
NONE = 0


#: Longest message of an error. A message quotes what a request named, and a name may have 32,767 bytes, as many as a whole string of an
#: answer; one character has at most four bytes.
MESSAGE_CHARS_MAX = 4_000


def _bounded(message: str) -> str:
    """The beginning and the end of a message: a name is quoted in the middle, and the advice comes last."""
    begin, end = MESSAGE_CHARS_MAX * 3 // 4, MESSAGE_CHARS_MAX // 4
    return f"{message[:begin]}... ({len(message) - begin - end} characters left out) ...{message[-end:]}"


class KafkaError(Exception):
    """Any error that can cross the wire. `str()` gives the message if there is one, and else the sentence of its class."""

    #: The number on the wire.
    code: ClassVar[int] = -1
    #: Whether the same request may succeed later.
    retriable: ClassVar[bool] = False
    #: What happened, in general; the first line of the class's documentation.
    sentence: ClassVar[str] = "Something failed."
    #: Kafka's constant.
    constant: ClassVar[str] = "UNKNOWN_SERVER_ERROR"

    def __init_subclass__(cls, code: int | None = None, retriable: bool = False) -> None:
        if code is None:
            return  # A finer error of ours, answered as the one it derives from.
        cls.code = code
        cls.retriable = retriable
        cls.constant = _CONSTANTS.get(cls.__name__) or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).upper()
        cls.sentence = cls.__doc__ or cls.constant
        BY_CODE[code] = cls

    def __init__(self, message: str | None = None) -> None:
        if message is not None and len(message) > MESSAGE_CHARS_MAX:
            message = _bounded(message)
        super().__init__(message or self.sentence)
        #: What happened this time, if there is more to say than the sentence; at most about ``MESSAGE_CHARS_MAX`` characters.
        self.message = message


#: Class of an error code; 0, success, is not in it.
BY_CODE: dict[int, type[KafkaError]] = {}
_CONSTANTS = {"InvalidTopic": "INVALID_TOPIC_EXCEPTION", "NetworkError": "NETWORK_EXCEPTION"}


def error_for(code: int, message: str | None = None) -> KafkaError:
    """Give the error of a code other than 0; a code from a newer Kafka becomes an UnknownServerError that names it."""
    cls = BY_CODE.get(code)
    if cls is None:
        return UnknownServerError(f"error code {code}" if message is None else f"error code {code}: {message}")
    return cls(message)


class UnknownServerError(KafkaError, code=-1):
    """The broker met an error that it has no name for; its log has the story."""


class OffsetOutOfRange(KafkaError, code=1):
    """No record has this offset: it is before the start of the log or past its end."""


class CorruptMessage(KafkaError, code=2, retriable=True):
    """The batch is damaged: its checksum does not match, or its structure does not hold."""


class UnknownTopicOrPartition(KafkaError, code=3, retriable=True):
    """This broker knows no such topic, or the topic has no such partition."""


class InvalidFetchSize(KafkaError, code=4):
    """The number of bytes to fetch makes no sense."""


class LeaderNotAvailable(KafkaError, code=5, retriable=True):
    """The partition has no leader at the moment."""


class NotLeaderOrFollower(KafkaError, code=6, retriable=True):
    """This broker does not lead the partition, or holds no replica of it; ask for metadata again."""


class RequestTimedOut(KafkaError, code=7, retriable=True):
    """The work was not done within the time the request allowed."""


class BrokerNotAvailable(KafkaError, code=8):
    """The broker is not there."""


class ReplicaNotAvailable(KafkaError, code=9, retriable=True):
    """The broker holds no replica of this partition that could be read now."""


class MessageTooLarge(KafkaError, code=10):
    """The batch is larger than the topic's max.message.bytes."""


class StaleControllerEpoch(KafkaError, code=11):
    """The request comes from a controller that another one has replaced."""


class OffsetMetadataTooLarge(KafkaError, code=12):
    """The metadata committed beside an offset is too long."""


class NetworkError(KafkaError, code=13, retriable=True):
    """The connection was lost before the answer came."""


class CoordinatorLoadInProgress(KafkaError, code=14, retriable=True):
    """The coordinator is still reading its state from the log."""


class CoordinatorNotAvailable(KafkaError, code=15, retriable=True):
    """There is no coordinator for this group or transaction at the moment."""


class NotCoordinator(KafkaError, code=16, retriable=True):
    """This broker does not coordinate this group or transaction; find the coordinator again."""


class InvalidTopic(KafkaError, code=17):
    """The topic's name is not allowed, or the topic is internal and not open to clients."""


class RecordListTooLarge(KafkaError, code=18):
    """The batch does not fit into a segment of the log."""


class NotEnoughReplicas(KafkaError, code=19, retriable=True):
    """Fewer replicas are in sync than min.insync.replicas asks for; nothing was written."""


class NotEnoughReplicasAfterAppend(KafkaError, code=20, retriable=True):
    """The batch was written, but the replicas in sync then fell below min.insync.replicas."""


class InvalidRequiredAcks(KafkaError, code=21):
    """acks is none of 0, 1 and -1."""


class IllegalGeneration(KafkaError, code=22):
    """The member speaks of a generation that the group is not in."""


class InconsistentGroupProtocol(KafkaError, code=23):
    """The member shares no protocol with the other members of the group, or names none."""


class InvalidGroupId(KafkaError, code=24):
    """The group's id is empty, or otherwise not allowed."""


class UnknownMemberId(KafkaError, code=25):
    """The group has no member of this id."""


class InvalidSessionTimeout(KafkaError, code=26):
    """The session timeout lies outside of what the broker allows."""


class RebalanceInProgress(KafkaError, code=27):
    """The group is rebalancing: the member has to join again."""


class InvalidCommitOffsetSize(KafkaError, code=28):
    """An offset to commit takes more room than is allowed."""


class TopicAuthorizationFailed(KafkaError, code=29):
    """The client has no permission for this on the topic; whoever administers the cluster can grant it with an ACL."""


class GroupAuthorizationFailed(KafkaError, code=30):
    """The client has no permission for this on the group; whoever administers the cluster can grant it with an ACL."""


class ClusterAuthorizationFailed(KafkaError, code=31):
    """The client has no permission for this on the cluster; whoever administers the cluster can grant it with an ACL."""


class InvalidTimestamp(KafkaError, code=32):
    """A record's timestamp is too far from the broker's clock, or is of a kind that clients may not set."""


class UnsupportedSaslMechanism(KafkaError, code=33):
    """The broker does not offer this SASL mechanism."""


class IllegalSaslState(KafkaError, code=34):
    """This request may not be made at this point of the authentication."""


class UnsupportedVersion(KafkaError, code=35):
    """The broker does not know this version of the request, or of something it asks for."""


class TopicAlreadyExists(KafkaError, code=36):
    """A topic of this name exists already."""


class InvalidPartitions(KafkaError, code=37):
    """The number of partitions is not possible: below one, or not more than the topic has."""


class InvalidReplicationFactor(KafkaError, code=38):
    """The replication factor is below one, or above the number of brokers alive."""


class InvalidReplicaAssignment(KafkaError, code=39):
    """The assignment of replicas to brokers does not hold together."""


class InvalidConfig(KafkaError, code=40):
    """A setting is unknown, or its value is not allowed."""


class NotController(KafkaError, code=41, retriable=True):
    """This broker is not the controller; ask for metadata again."""


class InvalidRequest(KafkaError, code=42):
    """The request contradicts itself, or lacks what it needs."""


class UnsupportedForMessageFormat(KafkaError, code=43):
    """Batches of this old format cannot do what was asked."""


class PolicyViolation(KafkaError, code=44):
    """A policy of this cluster forbids it."""


class OutOfOrderSequenceNumber(KafkaError, code=45):
    """The batch's sequence number does not follow the producer's last one."""


class DuplicateSequenceNumber(KafkaError, code=46):
    """The batch was appended before, too long ago to say at which offset."""


class InvalidProducerEpoch(KafkaError, code=47):
    """A newer epoch of this producer id has written here."""


class InvalidTxnState(KafkaError, code=48):
    """The transaction is not in a state that allows this."""


class InvalidProducerIdMapping(KafkaError, code=49):
    """The producer id does not belong to this transactional id."""


class InvalidTransactionTimeout(KafkaError, code=50):
    """The transaction's timeout is above transaction.max.timeout.ms, or not positive."""


class ConcurrentTransactions(KafkaError, code=51, retriable=True):
    """Another change to this transaction is under way."""


class TransactionCoordinatorFenced(KafkaError, code=52):
    """The transaction's coordinator has been replaced by a newer one."""


class TransactionalIdAuthorizationFailed(KafkaError, code=53):
    """The client may not use this transactional id."""


class SecurityDisabled(KafkaError, code=54):
    """This broker has no access control to administer."""


class OperationNotAttempted(KafkaError, code=55):
    """Another part of the same request failed, and so this part was not tried."""


class KafkaStorageError(KafkaError, code=56, retriable=True):
    """The disk under the log failed."""


class LogDirNotFound(KafkaError, code=57):
    """The broker has no such log directory."""


class SaslAuthenticationFailed(KafkaError, code=58):
    """The credentials were not accepted."""


class UnknownProducerId(KafkaError, code=59):
    """The broker remembers nothing of this producer id: its records were deleted, or it was silent for too long."""


class ReassignmentInProgress(KafkaError, code=60):
    """The partition's replicas are being moved already."""


class DelegationTokenAuthDisabled(KafkaError, code=61):
    """Delegation tokens are not enabled here."""


class DelegationTokenNotFound(KafkaError, code=62):
    """There is no such delegation token."""


class DelegationTokenOwnerMismatch(KafkaError, code=63):
    """The principal neither owns this delegation token nor may renew it."""


class DelegationTokenRequestNotAllowed(KafkaError, code=64):
    """Delegation tokens may not be asked for over this kind of connection."""


class DelegationTokenAuthorizationFailed(KafkaError, code=65):
    """The client may not do this with delegation tokens."""


class DelegationTokenExpired(KafkaError, code=66):
    """The delegation token has expired."""


class InvalidPrincipalType(KafkaError, code=67):
    """Principals of this type are not known here."""


class NonEmptyGroup(KafkaError, code=68):
    """The group still has members."""


class GroupIdNotFound(KafkaError, code=69):
    """There is no such group."""


class FetchSessionIdNotFound(KafkaError, code=70, retriable=True):
    """The broker has no such fetch session (any more); open a new one."""


class InvalidFetchSessionEpoch(KafkaError, code=71, retriable=True):
    """The fetch session is at another epoch; open a new one."""


class ListenerNotFound(KafkaError, code=72, retriable=True):
    """The leader does not listen where this request came in."""


class TopicDeletionDisabled(KafkaError, code=73):
    """Topics may not be deleted here: delete.topic.enable is false."""


class FencedLeaderEpoch(KafkaError, code=74, retriable=True):
    """The client believes in a leader epoch that is over; ask for metadata again."""


class UnknownLeaderEpoch(KafkaError, code=75, retriable=True):
    """The client knows of a leader epoch that this broker has not heard of yet."""


class UnsupportedCompressionType(KafkaError, code=76):
    """The batch's compression does not go with this version of the request."""


class StaleBrokerEpoch(KafkaError, code=77):
    """The broker has registered again since, and this request is from before."""


class OffsetNotAvailable(KafkaError, code=78, retriable=True):
    """A newly elected leader cannot say yet which offset is the last."""


class MemberIdRequired(KafkaError, code=79):
    """The member has to join again, with the id it is given now."""


class PreferredLeaderNotAvailable(KafkaError, code=80, retriable=True):
    """The preferred leader is not there to be elected."""


class GroupMaxSizeReached(KafkaError, code=81):
    """The group is full."""


class FencedInstanceId(KafkaError, code=82):
    """Another member has taken over this group.instance.id."""


class EligibleLeadersNotAvailable(KafkaError, code=83, retriable=True):
    """No replica is fit to be elected."""


class ElectionNotNeeded(KafkaError, code=84, retriable=True):
    """The partition has the leader it should have."""


class NoReassignmentInProgress(KafkaError, code=85):
    """The partition's replicas are not being moved."""


class GroupSubscribedToTopic(KafkaError, code=86):
    """The group still subscribes to this topic."""


class InvalidRecord(KafkaError, code=87):
    """A record, or the batch around it, breaks a rule of the broker or of the topic."""


class UnstableOffsetCommit(KafkaError, code=88, retriable=True):
    """A transaction has yet to decide on some of these offsets."""


class ThrottlingQuotaExceeded(KafkaError, code=89, retriable=True):
    """The client has used up its quota; it may try again later."""


class ProducerFenced(KafkaError, code=90):
    """A newer producer of the same transactional id has taken over."""


class ResourceNotFound(KafkaError, code=91):
    """There is no such resource."""


class DuplicateResource(KafkaError, code=92):
    """The request names the same resource twice."""


class UnacceptableCredential(KafkaError, code=93):
    """The credential does not meet the rules for credentials."""


class InconsistentVoterSet(KafkaError, code=94):
    """The voters do not agree on who the voters are."""


class InvalidUpdateVersion(KafkaError, code=95):
    """The partition's state has changed in the meantime."""


class FeatureUpdateFailed(KafkaError, code=96):
    """The features could not be changed."""


class PrincipalDeserializationFailure(KafkaError, code=97):
    """The principal of a forwarded request could not be read."""


class SnapshotNotFound(KafkaError, code=98):
    """There is no such snapshot."""


class PositionOutOfRange(KafkaError, code=99):
    """The snapshot ends before this position."""


class UnknownTopicId(KafkaError, code=100, retriable=True):
    """This broker knows no topic of this id."""


class DuplicateBrokerRegistration(KafkaError, code=101):
    """A broker of this id is registered and alive."""


class BrokerIdNotRegistered(KafkaError, code=102):
    """No broker of this id is registered."""


class InconsistentTopicId(KafkaError, code=103, retriable=True):
    """The topic's id is not the one the log was made for: the topic was created anew."""


class InconsistentClusterId(KafkaError, code=104):
    """The request is meant for another cluster."""


class TransactionalIdNotFound(KafkaError, code=105):
    """Nobody uses such a transactional id."""


class FetchSessionTopicIdError(KafkaError, code=106, retriable=True):
    """The fetch session mixes topics by name with topics by id."""


class IneligibleReplica(KafkaError, code=107):
    """One of the brokers may not join the in-sync replicas now."""


class NewLeaderElected(KafkaError, code=108):
    """The change was made, and with it the partition got another leader."""


class OffsetMovedToTieredStorage(KafkaError, code=109):
    """The offset is no longer on this broker's disk, only in tiered storage."""


class FencedMemberEpoch(KafkaError, code=110):
    """The group has fenced this member: it gives up its partitions and joins again."""


class UnreleasedInstanceId(KafkaError, code=111):
    """Another member still holds this instance id."""


class UnsupportedAssignor(KafkaError, code=112):
    """The group knows no such assignor."""


class StaleMemberEpoch(KafkaError, code=113):
    """The member's epoch is out of date; the next heartbeat brings the new one."""


class MismatchedEndpointType(KafkaError, code=114):
    """The request went to the wrong kind of endpoint."""


class UnsupportedEndpointType(KafkaError, code=115):
    """This kind of endpoint is not supported."""


class UnknownControllerId(KafkaError, code=116):
    """There is no controller of this id."""


class UnknownSubscriptionId(KafkaError, code=117):
    """The telemetry subscription is unknown or out of date."""


class TelemetryTooLarge(KafkaError, code=118):
    """The telemetry is larger than the broker takes."""


class InvalidRegistration(KafkaError, code=119):
    """The registration was refused."""


class TransactionAbortable(KafkaError, code=120):
    """The transaction has to be aborted; the producer can go on after that."""


class InvalidRecordState(KafkaError, code=121):
    """The record is not in a state in which it can be acknowledged."""


class ShareSessionNotFound(KafkaError, code=122, retriable=True):
    """There is no such share session."""


class InvalidShareSessionEpoch(KafkaError, code=123, retriable=True):
    """The share session is at another epoch."""


class FencedStateEpoch(KafkaError, code=124):
    """The share group's state is at another epoch."""


class InvalidVoterKey(KafkaError, code=125):
    """The voter's key is not the one of this replica."""


class DuplicateVoter(KafkaError, code=126):
    """This voter is one already."""


class VoterNotFound(KafkaError, code=127):
    """There is no such voter."""


class InvalidRegularExpression(KafkaError, code=128):
    """The regular expression cannot be read."""


class RebootstrapRequired(KafkaError, code=129):
    """The client has the wrong cluster in mind: it starts over from its bootstrap servers."""


class StreamsInvalidTopology(KafkaError, code=130):
    """The topology is not valid."""


class StreamsInvalidTopologyEpoch(KafkaError, code=131):
    """The topology's epoch is not valid."""


class StreamsTopologyFenced(KafkaError, code=132):
    """The topology has been replaced by a newer one."""


class ShareSessionLimitReached(KafkaError, code=133, retriable=True):
    """The broker has as many share sessions as it may have."""
