"""Every schedule against always-RAG on a simulated reader that batches, from idle to saturation."""
