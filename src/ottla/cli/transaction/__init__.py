"""`ottla transaction`: transactional ids, and transactions that hold back readers."""
