"""What the stack relies on of MIGraphX's Python module, and what that lets through without a word.

The same tests hold the module made up for the other tests and, where there is one, a real one with its CPU targets.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from migraphx_models import SHAPE, SIZE, images, module, net, save
from onnx import helper

DIMS = {"image": list(SHAPE)}


@pytest.fixture(scope="module", params=["fake", "real"])
def library(request: pytest.FixtureRequest) -> ModuleType:
    return module(request.param)


@pytest.fixture(scope="module")
def onnx_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return net(tmp_path_factory.mktemp("net") / "fp32.onnx")


def lens(program: Any) -> dict[str, list[int]]:
    return {name: list(shape.lens()) for name, shape in program.get_parameter_shapes().items()}


def compiled(library: ModuleType, onnx_file: Path, target: str = "ref", lower: Any = None) -> Any:
    program = library.parse_onnx(str(onnx_file), map_input_dims=DIMS)
    if lower:
        lower(program)
    program.compile(library.get_target(target), offload_copy=False, fast_math=True, exhaustive_tune=False)
    return program


def names(program: Any) -> list[str]:
    return [each.name() for each in program.get_main_module()]


def test_a_file_is_named_by_text(library: ModuleType, onnx_file: Path) -> None:
    with pytest.raises(TypeError):
        library.parse_onnx(onnx_file)
    assert lens(library.parse_onnx(str(onnx_file), map_input_dims=DIMS)) == DIMS


def test_an_open_size_becomes_one_and_an_unknown_name_is_taken(library: ModuleType, onnx_file: Path) -> None:
    assert lens(library.parse_onnx(str(onnx_file), map_input_dims={"nobody": [7]})) == {"image": [1, 3, 1, SIZE]}


def test_an_input_without_a_shape_becomes_one_number(library: ModuleType, tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"], "relu")]
    assert lens(library.parse_onnx(str(save(tmp_path / "a.onnx", nodes, {"x": None}, {"y": None})))) == {"x": [1]}


def test_an_empty_file_is_a_program_without_outputs(library: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "empty.onnx").write_bytes(b"")
    assert list(library.parse_onnx(str(tmp_path / "empty.onnx")).get_output_shapes()) == []


@pytest.mark.parametrize("wrong", ["missing", "garbage", "cut short"])
def test_files_that_cannot_be_read_have_one_message(
    library: ModuleType, onnx_file: Path, tmp_path: Path, wrong: str
) -> None:
    path = tmp_path / "model.onnx"
    if wrong != "missing":
        path.write_bytes(b"garbage" * 9 if wrong == "garbage" else onnx_file.read_bytes()[:-50])
    with pytest.raises(RuntimeError, match=r":\d+: \S+: PARSE_FROM: Failed reading onnx file: "):
        library.parse_onnx(str(path))


def test_an_unknown_operator_is_named(library: ModuleType, tmp_path: Path) -> None:
    nodes = [helper.make_node("Nonsense", ["x"], ["y"], "nonsense")]
    with pytest.raises(RuntimeError, match=r":\d+: \S+: .*Unknown operator: Nonsense"):
        library.parse_onnx(str(save(tmp_path / "a.onnx", nodes, {"x": [1]}, {"y": [1]})))


@pytest.mark.parametrize(("quantiser", "type_string"), [("quantize_fp16", "half_type"), ("quantize_bf16", "bf16_type")])
def test_quantising_works_in_place_between_float_inputs_and_outputs(
    library: ModuleType, onnx_file: Path, quantiser: str, type_string: str
) -> None:
    program = library.parse_onnx(str(onnx_file), map_input_dims=DIMS)
    assert getattr(library, quantiser)(program) is None
    shapes = [*program.get_parameter_shapes().values(), *program.get_output_shapes()]
    assert {shape.type_string() for shape in shapes} == {"float_type"}
    types = {each.name(): each.shape().type_string() for each in program.get_main_module()}
    assert types["convolution"] == type_string and "convert" in types


def test_an_unknown_name_to_quantise_changes_nothing(library: ModuleType, onnx_file: Path) -> None:
    program = library.parse_onnx(str(onnx_file), map_input_dims=DIMS)
    library.quantize_fp16(program, ["nobody"])
    assert "convert" not in names(program)


def test_a_target_is_an_object_and_a_reloaded_program_stays_compiled(library: ModuleType, onnx_file: Path) -> None:
    program = library.parse_onnx(str(onnx_file), map_input_dims=DIMS)
    with pytest.raises(TypeError):
        program.compile("ref")
    assert not program.is_compiled()
    assert not library.load_buffer(library.save_buffer(program)).is_compiled()
    program.compile(library.get_target("ref"))
    assert program.is_compiled() and library.load_buffer(bytes(library.save_buffer(program))).is_compiled()


def test_the_gpu_without_its_library_is_told_by_loading(library: ModuleType) -> None:
    if hasattr(library, "to_gpu"):
        pytest.skip("this MIGraphX has a GPU part")
    with pytest.raises(RuntimeError, match=r"Dynamic loading or symbol lookup failed with libmigraphx_gpu\.so"):
        library.get_target("gpu")


@pytest.mark.parametrize("content", [b"", b"garbage"])
def test_a_file_that_holds_no_program_is_a_runtime_error(library: ModuleType, content: bytes) -> None:
    with pytest.raises(RuntimeError, match="insufficient bytes|Not an object for field: version|Invalid"):
        library.load_buffer(content)


def test_a_run_demands_shape_type_and_strides(library: ModuleType, onnx_file: Path) -> None:
    program, image = compiled(library, onnx_file), images()["image"]
    turned = np.ascontiguousarray(image.transpose(0, 1, 3, 2)).transpose(0, 1, 3, 2)
    for wrong in (image[:1], image.astype(np.float64), turned):
        with pytest.raises(RuntimeError, match=r"Incorrect shape \{.*\} for parameter: image should be: "):
            program.run({"image": wrong})
    with pytest.raises(RuntimeError, match="Parameter not found: image"):
        program.run({"nobody": image})
    scores, features = (np.array(each) for each in program.run({"image": image, "nobody": image}))
    assert scores.shape == (2, 5) and features.shape == (2, 4, SIZE, SIZE)


def test_results_on_the_cpu_target_are_memory_that_the_next_run_writes_to(library: ModuleType, onnx_file: Path) -> None:
    program = compiled(library, onnx_file, "cpu")
    kept = np.asarray(program.run(images(0))[1])
    copied = kept.copy()
    program.run(images(1))
    assert not np.array_equal(kept, copied)


def test_the_ref_target_hides_operators_and_keeps_their_types(library: ModuleType, onnx_file: Path) -> None:
    program = compiled(library, onnx_file, "ref", library.quantize_fp16)
    found = [each for each in program.get_main_module() if each.name() == "ref::op"]
    types = {each.op().values()["name"]: each.shape().type_string() for each in found}
    assert types["convolution"] == "half_type"


def test_the_cpu_target_turns_half_back_into_float(library: ModuleType, onnx_file: Path) -> None:
    program = compiled(library, onnx_file, "cpu", library.quantize_fp16)
    found = [each for each in program.get_main_module() if "convolution" in each.name()]
    assert found and {each.shape().type_string() for each in found} == {"float_type"}


def test_instructions_are_told_apart_by_what_they_are(library: ModuleType, onnx_file: Path) -> None:
    """Not by the handles that stand for them, which are made anew at every asking."""
    program = library.parse_onnx(str(onnx_file), map_input_dims=DIMS)
    known = set()
    for each in program.get_main_module():
        assert all(one in known for one in each.inputs())
        known.add(each)
    assert len(known) == len(names(program))
