"""What the admin clients answer and take, to be named in annotations: topics, settings, brokers, groups, transactions, offsets."""

from ottla.client.admin.acl_results import (
    Acl as Acl,
    AclFilter as AclFilter,
    AclOperation as AclOperation,
    AclPatternType as AclPatternType,
    AclPermission as AclPermission,
    AclResourceType as AclResourceType,
)
from ottla.client.admin.calls import Outcome as Outcome, unwrap as unwrap
from ottla.client.admin.cluster_results import (
    ApiSupport as ApiSupport,
    Features as Features,
    Quorum as Quorum,
    QuorumListener as QuorumListener,
    QuorumReplica as QuorumReplica,
    Replica as Replica,
    ReplicaPlace as ReplicaPlace,
    VersionRange as VersionRange,
)
from ottla.client.admin.group_lag import GroupLag as GroupLag, PartitionLag as PartitionLag
from ottla.client.admin.group_results import (
    GroupDescription as GroupDescription,
    GroupListing as GroupListing,
    GroupMember as GroupMember,
    GroupState as GroupState,
    GroupType as GroupType,
)
from ottla.client.admin.quotas import QuotaEntity as QuotaEntity, QuotaMatch as QuotaMatch
from ottla.client.admin.results import (
    ActiveProducer as ActiveProducer,
    ClusterDescription as ClusterDescription,
    ConfigChange as ConfigChange,
    ConfigEntry as ConfigEntry,
    ConfigOperation as ConfigOperation,
    ConfigSource as ConfigSource,
    ConfigSynonym as ConfigSynonym,
    ConfigType as ConfigType,
    ConfigValue as ConfigValue,
    CreatedTopic as CreatedTopic,
    ElectionType as ElectionType,
    LogDir as LogDir,
    NewPartitions as NewPartitions,
    NewTopic as NewTopic,
    Node as Node,
    Operation as Operation,
    PartitionDescription as PartitionDescription,
    PartitionReassignment as PartitionReassignment,
    ReplicaLog as ReplicaLog,
    Resource as Resource,
    ResourceType as ResourceType,
    TopicDescription as TopicDescription,
    TopicListing as TopicListing,
)
from ottla.client.admin.transaction_results import (
    BlockedGroup as BlockedGroup,
    BlockedPartition as BlockedPartition,
    BlockingTransaction as BlockingTransaction,
    OpenTransaction as OpenTransaction,
    ProducerIdentity as ProducerIdentity,
    TransactionDescription as TransactionDescription,
    TransactionListing as TransactionListing,
    TransactionState as TransactionState,
    TransactionStatus as TransactionStatus,
)
from ottla.client.admin.user_results import DelegationToken as DelegationToken, ScramCredentialInfo as ScramCredentialInfo
from ottla.base.scram import ScramMechanism as ScramMechanism
from ottla.client.fetch.offsets import (
    EARLIEST as EARLIEST,
    EARLIEST_LOCAL as EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD as EARLIEST_PENDING_UPLOAD,
    LATEST as LATEST,
    LATEST_TIERED as LATEST_TIERED,
    MAX_TIMESTAMP as MAX_TIMESTAMP,
    OffsetAndTime as OffsetAndTime,
)
