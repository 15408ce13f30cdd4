"""What is read: contents, codecs and formats, how data is generated, scanned and verified."""
