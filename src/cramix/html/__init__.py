"""Self-contained HTML pages: no network, no build step."""
