"""Language models that answer: a client for OpenAI-compatible servers, replicas, and servers run as children."""
