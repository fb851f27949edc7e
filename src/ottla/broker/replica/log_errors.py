"""Maps errors of the log and records layers, which know no protocol, to protocol errors."""

from ottla.log import errors as log_errors
from ottla.records import errors as records_errors
from ottla.wire import errors

#: The first match wins: subclasses before their bases.
REFUSALS: tuple[tuple[type[Exception], type[errors.KafkaError]], ...] = (
    (records_errors.UnsupportedMagic, errors.InvalidRecord),
    (records_errors.UnsupportedCodec, errors.UnsupportedCompressionType),
    (records_errors.CorruptBatch, errors.CorruptMessage),
    (records_errors.InvalidBatch, errors.InvalidRecord),
    (records_errors.RecordsError, errors.InvalidRecord),
    (log_errors.OutOfOrderSequence, errors.OutOfOrderSequenceNumber),
    (log_errors.StaleProducerEpoch, errors.InvalidProducerEpoch),
    (log_errors.StaleCoordinatorEpoch, errors.TransactionCoordinatorFenced),
    (log_errors.OffsetOutOfRange, errors.OffsetOutOfRange),
    (log_errors.InvalidTransactionState, errors.InvalidTxnState),
    (log_errors.CorruptLog, errors.CorruptMessage),
)


def refusal_of(error: Exception) -> errors.KafkaError:
    """The protocol error for ``error``."""
    for kind, refusal in REFUSALS:
        if isinstance(error, kind):
            return refusal(str(error))
    raise error
