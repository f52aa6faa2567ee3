"""The commands, one module a group. Each is thin: it asks, publishes, and prints."""
