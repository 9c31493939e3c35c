"""What every training adapter shares: samples read in batches, a position that counts them, read-ahead, telemetry.

Nothing here imports a training library; `shardtool.torch` and `shardtool.grain` put their own interfaces over it.
"""
