"""The only home of NATS: connecting, the stream, publishing, reading, the local server."""
