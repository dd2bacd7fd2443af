"""What a model may call: files inside a root, artifacts and history, and the tools of MCP servers."""
