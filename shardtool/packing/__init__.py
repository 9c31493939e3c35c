"""A plan becomes a data set: one run that may be killed anywhere, its shards, receipts and target."""
