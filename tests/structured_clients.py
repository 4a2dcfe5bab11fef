"""`python -m tests.structured_clients URL`: other projects' clients ask a gateway for structured output, unchanged.

It runs by hand, after `pip install openai langchain-openai outlines guidance`: of these, Baton's tests have the first.
Status 0 means that each answer is what was asked for.
"""

import json
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any, Final, Literal

import guidance
import openai
import outlines
from guidance.models.experimental import SglangModel, VLLMModel
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr

QUESTION: Final = "Describe a fox."
SCHEMA: Final = {
    "title": "fox",
    "description": "a fox",
    "type": "object",
    "properties": {"legs": {"enum": [2, 4]}},
    "required": ["legs"],
    "additionalProperties": False,
}
Check = Callable[[], bool]


class Animal(BaseModel):
    """What is asked for."""

    name: str
    legs: Literal[2, 4]
    tame: bool


def of_openai(url: str, model: str) -> dict[str, Check]:
    """`parse`, with a class."""
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)

    def parsed() -> bool:
        messages: list[Any] = [{"role": "user", "content": QUESTION}]
        answer = client.chat.completions.parse(
            model=model, messages=messages, response_format=Animal, max_tokens=200, seed=1
        )
        return isinstance(answer.choices[0].message.parsed, Animal)

    return {"openai: parse": parsed}


def of_langchain(url: str, model: str) -> dict[str, Check]:
    """`with_structured_output`, with a class and with a schema."""
    chat = ChatOpenAI(model=model, base_url=url, api_key=SecretStr("none"), max_tokens=200, seed=1)
    by_class, by_schema = chat.with_structured_output(Animal), chat.with_structured_output(SCHEMA)
    strict = chat.with_structured_output(Animal, method="json_schema", strict=True, include_raw=True)
    return {
        "langchain: class": lambda: isinstance(by_class.invoke(QUESTION), Animal),
        "langchain: strict, with the raw answer": lambda: isinstance(strict.invoke(QUESTION)["parsed"], Animal),
        "langchain: schema": lambda: by_schema.invoke(QUESTION)["legs"] in (2, 4),
        "langchain: stream": lambda: isinstance([*by_class.stream(QUESTION)][-1], Animal),
    }


def of_outlines(kind: str, connect: Any, grammar: str, url: str, model: str) -> dict[str, Check]:
    """Through the field names of `kind`."""
    asks = connect(openai.OpenAI(base_url=url, api_key="none", max_retries=0), model)

    def ask(output: Any) -> str:
        return str(asks(QUESTION, output, max_tokens=200, seed=1))

    of = f"outlines, {kind}"
    return {
        f"{of}: class": lambda: bool(Animal.model_validate_json(ask(Animal))),
        f"{of}: choice": lambda: ask(Literal["yes", "no"]) in ("yes", "no"),
        f"{of}: regex": lambda: re.fullmatch("[0-9]{4}", ask(outlines.regex("[0-9]{4}"))) is not None,
        f"{of}: grammar": lambda: ask(outlines.cfg(grammar)) in ("yes", "no"),
        f"{of}: schema": lambda: json.loads(ask(outlines.json_schema(SCHEMA)))["legs"] in (2, 4),
    }


def of_guidance(kind: str, connect: Any, url: str, model: str) -> dict[str, Check]:
    """Its model for servers of `kind`."""

    def ask(body: Any, name: str) -> str:
        state = connect(model, base_url=url, api_key="none", echo=False)
        with guidance.user():
            state += QUESTION
        with guidance.assistant():
            state += body
        return str(state[name])

    of, pick = f"guidance, {kind}", guidance.select(["red", "grey"], name="colour")
    digits, whole = guidance.gen("n", regex="[0-9]{2}"), guidance.json("fox", schema=Animal)
    return {
        f"{of}: select": lambda: ask(pick, "colour") in ("red", "grey"),
        f"{of}: regex": lambda: re.fullmatch("[0-9]{2}", ask(digits, "n")) is not None,
        f"{of}: text around": lambda: ask("It is " + pick + ".", "colour") in ("red", "grey"),
        f"{of}: class": lambda: bool(Animal.model_validate_json(ask(whole, "fox"))),
    }


def all_checks(url: str, model: str) -> dict[str, Check]:
    """By what each says of itself."""
    return {
        **of_openai(url, model),
        **of_langchain(url, model),
        **of_outlines("vllm", outlines.from_vllm, 'start: "yes" | "no"', url, model),
        **of_outlines("sglang", outlines.from_sglang, 'root ::= "yes" | "no"', url, model),
        **of_guidance("vllm", VLLMModel, url, model),
        **of_guidance("sglang", SglangModel, url, model),
    }


def main(url: str) -> int:
    """Prints a line for each client; 1 if one is not served."""
    warnings.simplefilter("ignore")
    model, num_bad = openai.OpenAI(base_url=url, api_key="none").models.list().data[0].id, 0
    for name, check in all_checks(url, model).items():
        try:
            said = "served" if check() else "got another answer"
        except Exception as error:  # noqa: BLE001 - of another project's client
            said = f"{type(error).__name__}: {str(error)[:200]}"
        num_bad += said != "served"
        sys.stdout.write(f"{name}: {said}\n")
    return int(num_bad > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
