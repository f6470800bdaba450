"""A long run of the gateway under mixed load, watched for anything that grows."""
