"""Tables on S3, Google Cloud Storage and Azure, through one client.

Tested by `tests/storage/cloud`.
"""
