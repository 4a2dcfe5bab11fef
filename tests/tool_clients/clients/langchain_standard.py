"""The standard tests of langchain-tests for chat models, on langchain-openai. pytest of another environment runs it."""

import os
from typing import Any

from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

URL, MODEL = os.environ["TOOL_CLIENTS_URL"], os.environ["TOOL_CLIENTS_MODEL"]


class Standard(ChatModelIntegrationTests):  # type: ignore[misc]  # its package is not installed here
    """The model of the server. A token of the scripted model is a byte or little more: answers need many."""

    @property
    def chat_model_class(self) -> Any:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": MODEL, "base_url": URL, "api_key": "none", "max_tokens": 1000, "stream_usage": True}

    @property
    def supports_json_mode(self) -> bool:
        return True


class TestIntegration(Standard):
    """Structured output by `response_format`."""


class TestStructuredByCalls(Standard):
    """Structured output by a tool that must be called."""

    @property
    def structured_output_kwargs(self) -> dict[str, Any]:
        return {"method": "function_calling"}


class TestStructuredByStrictCalls(Standard):
    """Structured output by a strict tool."""

    @property
    def structured_output_kwargs(self) -> dict[str, Any]:
        return {"method": "function_calling", "strict": True}
