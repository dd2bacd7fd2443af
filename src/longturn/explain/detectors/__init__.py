"""One file per family of mechanisms. A detector takes two requests, and says what it has seen or None."""
