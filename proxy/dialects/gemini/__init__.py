"""Gemini: ``generateContent`` and ``streamGenerateContent`` as Google's clients and gemini-cli speak them. Pure.

Source of the format: Google's "Gemini API reference" and what its clients put on the wire. Model, method and whether a
reply is streamed stand in the path (``paths``); a request's contents become messages (``contents``), the rest of it
sampling parameters, tools and a response format (``request``); replies are candidates with parts (``reply``).
docs/dialects/gemini.md has the whole mapping, with what is ignored and refused.
"""

from proxy.dialects.gemini.errors import error
from proxy.dialects.gemini.models import model_info
from proxy.dialects.gemini.request import decode, decode_count

__all__ = ["decode", "decode_count", "engine_path", "error", "model_info", "name"]

name = "gemini"
engine_path = "/v1/chat/completions"
