"""Deletes expired delegation tokens, every ``delegation.token.expiry.check.interval.ms``. Source: KIP-48."""

from ottla.base.ports import Op
from ottla.broker.context import BrokerContext
from ottla.broker.controller.fenced_writes import FencedWrites
from ottla.store import layout

#: Tokens deleted at a time; the others follow with the next tick.
DELETED_MAX = 100


class TokenExpiry:
    """Of the controller."""

    def __init__(self, context: BrokerContext, writes: FencedWrites) -> None:
        self._context = context
        self._writes = writes
        #: Time of the next check.
        self._next_ms = 0

    def tick(self) -> None:
        context = self._context
        if context.now_ms < self._next_ms:
            return
        expired = [token_id for token_id, token in context.image.tokens.items() if min(token.expires_ms, token.max_ms) < context.wall_ms]
        for token_id in expired[:DELETED_MAX]:
            path = layout.delegation_token(token_id)
            op = Op("delete", path, version=context.image.versions[path])
            # A token that was changed meanwhile is checked again with the next tick.
            self._writes.write((op,), lambda result: None)
        if len(expired) <= DELETED_MAX:
            self._next_ms = context.now_ms + context.options.delegation_token_expiry_check_ms
