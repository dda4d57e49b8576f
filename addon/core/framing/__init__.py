"""JSON documents in bytes, and the framing of streams: event streams, arrays, content encodings."""
