"""Objects behind the S3 API, over one of three clients."""
