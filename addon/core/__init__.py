"""Pure functions over Gemini documents: a document in, a new document out. No I/O, no clock, no mitmproxy."""
