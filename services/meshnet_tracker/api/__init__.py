"""What a tracker tells those who ask: `answers` decides (pure), `nats` is its edge."""
