"""Whether shards and data sets are what they say: structure, digests, repeats, other readers."""
