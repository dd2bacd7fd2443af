"""Google's Gemini: the one face of this dialect."""

from longturn.dialects.gemini_errors import error_body, error_status
from longturn.dialects.gemini_request import (
    DEFAULT_LIFE,
    CachedContentRequest,
    CacheLife,
    CountRequest,
    GenerateRequest,
    Prompted,
    parse_cache_life,
    parse_cached_content,
    parse_count,
    parse_generate,
)
from longturn.dialects.gemini_response import answer, cached_content, candidate, counted, model_object, part
from longturn.dialects.gemini_usage import usage, use

__all__ = [
    "DEFAULT_LIFE",
    "CacheLife",
    "CachedContentRequest",
    "CountRequest",
    "GenerateRequest",
    "Prompted",
    "answer",
    "cached_content",
    "candidate",
    "counted",
    "error_body",
    "error_status",
    "model_object",
    "parse_cache_life",
    "parse_cached_content",
    "parse_count",
    "parse_generate",
    "part",
    "usage",
    "use",
]
