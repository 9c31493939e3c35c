"""Indexes and manifests that were lost or never made: from shards of any origin."""
