"""Samples -> shards: order, splits, cuts and exact sizes, and the files that keep the decision."""
