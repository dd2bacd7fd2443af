"""Google's API over the engine: generateContent, counting, cached contents."""
