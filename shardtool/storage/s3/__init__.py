"""Object stores that speak S3: settings, three engines, one retry layer, and a Place on top of them.

    settings ──► client.request ──► retries ──► engine.exchange     thin, boto3 or obstore: one attempt each
                    ▲
    place, upload, many, listing                                    what the rest of shardtool uses

Nothing here is imported for local work, and botocore only when the first request needs credentials.
"""
