"""Where bytes enter: the consumer port, the client, the embedded broker, dead letters."""
