"""Structs that Python and C share: a difference is found when the library is loaded."""

import ctypes
from typing import Any, cast

import pytest
import torch

from model.cpu_draft import CDraft, CpuDraft, DraftParts
from model.cpu_experts import CMixture, CMlp
from model.cpu_kernels import CRequests, CScoring, load_kernels
from model.cpu_layers import CLayer, CpuLayers, _Decodes, _TokenPlaces
from model.cpu_products import CLinear
from model.cpu_structs import check_struct, places_in_c, places_in_python
from model.fake import FakeRunner
from protocol.errors import InternalError

CONFIG = FakeRunner(head_dim=16).config
STRUCTS = {
    "linear": CLinear,
    "mlp": CMlp,
    "mixture": CMixture,
    "layer": CLayer,
    "scoring": CScoring,
    "requests": CRequests,
    "decodes": _Decodes,
    "draft": CDraft,
    "token_places": _TokenPlaces,
}


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    return load_kernels(CONFIG, torch.float32, "float32").library


def test_every_struct_of_the_library_is_one_that_python_knows(library: ctypes.CDLL) -> None:
    names = {name.partition(".")[0] for name in places_in_c(library)}
    assert names == set(STRUCTS)
    for name, struct in STRUCTS.items():
        check_struct(library, name, struct)
        assert len(places_in_python(name, struct)) == 1 + len(struct._fields_)


def _changed(struct: type[ctypes.Structure], how: str, at: int) -> type[ctypes.Structure]:
    """The struct with one field exchanged with its neighbour, left out, of half its size, or under another name."""
    fields: list[tuple[str, Any]] = [(field[0], field[1]) for field in struct._fields_]
    if how == "exchanged":
        fields[at - 1 : at + 1] = reversed(fields[at - 1 : at + 1])
    elif how == "left out":
        del fields[at]
    elif how == "halved":
        fields[at] = (fields[at][0], ctypes.c_char * (ctypes.sizeof(fields[at][1]) // 2))
    else:
        fields[at] = (f"{fields[at][0]}_other", fields[at][1])
    return type(struct.__name__, (ctypes.Structure,), {"_fields_": tuple(fields)})


@pytest.mark.parametrize("how", ["exchanged", "left out", "halved", "renamed"])
@pytest.mark.parametrize("name", STRUCTS)
def test_any_change_of_one_side_alone_is_found(name: str, how: str, library: ctypes.CDLL) -> None:
    struct = STRUCTS[name]
    for at in range(1, len(struct._fields_)):
        with pytest.raises(InternalError, match=rf"{name}(\.\w+)? has \(offset, bytes\) .* in C and"):
            check_struct(library, name, _changed(struct, how, at))


def test_a_library_is_checked_when_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model.cpu_kernels.CLinear", _changed(CLinear, "left out", 1))
    with pytest.raises(InternalError, match=r"linear has \(offset, bytes\)"):
        load_kernels(CONFIG, torch.float32, "float32")


@pytest.mark.parametrize("struct, name", [(CLayer, "CLayer"), (_Decodes, "_Decodes"), (_TokenPlaces, "_TokenPlaces")])
def test_layers_are_checked_when_a_model_is_loaded(
    struct: type[ctypes.Structure], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = load_kernels(CONFIG, torch.float32, "float32")
    monkeypatch.setattr(f"model.cpu_layers.{name}", _changed(struct, "left out", 1))
    with pytest.raises(InternalError, match=r"(layer|decodes|token_places) has \(offset, bytes\)"):
        CpuLayers.of(kernels, [CLayer()], torch.float32, torch.zeros(1))


@pytest.mark.parametrize("name", ["CLayer", "CDraft"])
def test_a_layer_of_a_draft_is_checked_when_it_is_loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = load_kernels(CONFIG, torch.float32, "float32")
    struct = {"CLayer": CLayer, "CDraft": CDraft}[name]
    monkeypatch.setattr(f"model.cpu_draft.{name}", _changed(struct, "left out", 1))
    with pytest.raises(InternalError, match=r"(layer|draft) has \(offset, bytes\)"):
        CpuDraft.of(kernels, cast("DraftParts", None), CLayer(), torch.float32, torch.zeros(1), 0)
