from pathlib import Path

import pytest

from gateway.generation.translate import Translator
from gateway.text.chat_template import ChatTemplates
from gateway.text.model_folder import read_model_folder
from gateway.words.limits import Limits
from gateway.words.request import Ask, PromptIds
from protocol.errors import BadRequest
from tests.gateway.folders import write_folder


def many(num_prompts: int, n: int = 1) -> Ask:
    return Ask([PromptIds([1])] * num_prompts, num_choices=n, max_tokens=1)


@pytest.mark.parametrize(("num_prompts", "n"), [(8 + 3 + 8 + 3, 1), (4 + 3 + 4 + 3, 2), (3 + 3, 9)])
def test_more_prompts_than_all_workers_can_ever_hold_are_refused(num_prompts: int, n: int, tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    translator = Translator(read_model_folder(folder), None, ChatTemplates({}, {}))
    limits = Limits(places=((8, 3), (8, 3)))
    assert len(translator.all_prompts([many(num_prompts, n)], limits, [""])) == num_prompts
    each = f" of {n} choices each" if n > 1 else ""
    words = f"prompts: got {num_prompts + 1} prompts{each}, expected at most {num_prompts}, which the workers run"
    with pytest.raises(BadRequest, match=words) as caught:
        translator.all_prompts([many(num_prompts - 1, n), many(2, n)], limits, ["", ""])
    assert caught.value.param == "prompts"
