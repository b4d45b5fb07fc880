"""Programs are data: round trip, refusals, bounds, and the same numbers as plain PyTorch."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from train_kit import CONTEXT, dataset, first_parameters, graph, program

from gdf_market.codec import encode
from gdf_market.errors import MalformedError, OversizedError, PeerError
from gdf_market.train.checkpoint import pack
from gdf_market.train.dry_run import dry_run
from gdf_market.train.graph import MAX_GRAPH_BYTES, MAX_LIST, Graph, GraphInput, Node, Parameter, Sample
from gdf_market.train.interpreter import ProgramModule
from gdf_market.train.operator_rules import MAX_PIECES, check_call
from gdf_market.train.operators import ATEN, is_allowed, resolve
from gdf_market.train.program import Program, check_structure, to_safetensors

VOCAB = dataset().vocab
HUGE = 2**40


def read(given: Graph, constants: dict[str, torch.Tensor] | None = None) -> Program:
    """Send a graph through bytes, as a stranger would."""
    tensors = {"scale": torch.tensor(2.0)} if constants is None else constants
    return Program.from_bytes(Program(given, tensors).to_bytes())


def with_node(*nodes: Node, output: int | None = None) -> Graph:
    """The usual graph with nodes put after it; values 0..4 are inputs, 10 is the loss, 11 the first of ``nodes``."""
    usual = graph(VOCAB).train
    return graph(VOCAB, nodes=(*usual.nodes, *nodes), output=usual.output if output is None else output)


def call(op: str, *args: Any, **kwargs: Any) -> Node:
    return Node(op=op, args=list(args), kwargs=kwargs)


def value(index: int) -> dict[str, int]:
    return {"value": index}


def test_round_trip() -> None:
    made = program()
    again = Program.from_bytes(made.to_bytes())
    assert again.graph == made.graph
    assert again.to_bytes() == made.to_bytes()
    assert again.size == 2 * VOCAB * 8


def test_a_program_computes_what_pytorch_computes() -> None:
    made = Program.from_bytes(program().to_bytes())
    flat = first_parameters(made.size)
    module = ProgramModule(made, made.unflatten(flat))
    tokens, targets = torch.randint(0, VOCAB, (3, CONTEXT)), torch.randint(0, VOCAB, (3, CONTEXT))
    loss = module(tokens, targets)
    loss.backward()
    table, head = (torch.from_numpy(part.copy()).reshape(VOCAB, 8).requires_grad_() for part in np.split(flat, 2))
    expected = F.cross_entropy((table[tokens] * 2 @ head.T).view(-1, VOCAB), targets.view(-1))
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for weight, plain in zip(module.weights, (table, head), strict=True):
        assert weight.grad is not None
        assert plain.grad is not None
        assert torch.allclose(weight.grad, plain.grad, atol=1e-6)


def test_flat_vector_keeps_the_order_of_parameters() -> None:
    made = program()
    flat = np.arange(made.size, dtype=np.float32)
    assert made.flatten(made.unflatten(flat)).tolist() == flat.tolist()
    assert made.unflatten(flat)[1][0, 0].item() == VOCAB * 8


def test_values_are_freed_after_their_last_use() -> None:
    module = ProgramModule(program(), program().unflatten(first_parameters(program().size)))
    freed = [index for step in module._train.steps for index in step.last_use]
    assert sorted(freed) == list(range(10))  # all but the loss, each once
    assert module._train.steps[0].last_use == (0, 2)


def test_safetensors_of_a_checkpoint_has_every_name_of_the_state() -> None:
    made = program()
    flat = first_parameters(made.size)
    tensors = safetensors.torch.load(to_safetensors(made, pack(flat, flat)))
    assert sorted(tensors) == ["head", "scale", "table", "tied"]
    assert torch.equal(tensors["tied"], tensors["table"])
    assert tensors["head"].numpy().ravel().tolist() == flat[VOCAB * 8 :].tolist()


# check_call refuses dropout in them
RANDOM_UNLESS_TOLD_NOT_TO = {"aten.scaled_dot_product_attention.default"} | {
    f"aten.{layer}.input" for layer in ("gru", "lstm", "rnn_tanh", "rnn_relu")
}


@pytest.mark.parametrize("name", sorted(ATEN))
def test_allowed_operators_change_nothing_and_draw_nothing(name: str) -> None:
    operator = resolve(name)
    assert not operator._schema.is_mutable  # type: ignore[attr-defined]
    random = torch.Tag.nondeterministic_seeded in operator.tags  # type: ignore[attr-defined]
    assert not random or name in RANDOM_UNLESS_TOLD_NOT_TO


@pytest.mark.parametrize(
    "name",
    [
        *("aten.add_.Tensor", "aten.as_strided.default", "aten.rand.default", "aten.from_file.default", "prim.device"),
        *("aten.set_.source_Storage", "aten.add.out", "aten.dropout.default", "aten.nonzero.default", "os.system", ""),
    ],
)
def test_other_operators_are_refused(name: str) -> None:
    assert not is_allowed(name)
    with pytest.raises(MalformedError):
        resolve(name)


@pytest.mark.parametrize("name", ["aten.rand.default", "aten.add_.Tensor", "builtins.eval", "aten.set_.default"])
def test_programs_with_other_operators_are_refused(name: str) -> None:
    with pytest.raises(MalformedError, match="not on the list"):
        read(with_node(call(name, value(10))))


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("aten.scaled_dot_product_attention.default", {"dropout_p": 0.1}),
        ("aten.batch_norm.default", {"training": True, "running_mean": 0, "running_var": None}),
        ("aten.instance_norm.default", {"use_input_stats": True, "running_mean": None, "running_var": 0}),
        ("aten.rnn_tanh.input", {"dropout": 0.1}),
        ("aten.one_hot.default", {"num_classes": -1}),
        ("aten.index.Tensor", {"indices": [torch.ones(2, dtype=torch.bool)]}),
        ("aten.lstm.input", {"dropout": 0.1}),
        ("aten.gru.input", {"dropout": 0.1}),
        ("aten.embedding.default", {"sparse": True}),
    ],
)
def test_arguments_that_bring_side_effects_back_are_refused(name: str, kwargs: dict[str, Any]) -> None:
    with pytest.raises(MalformedError):
        check_call(name, [], kwargs)


@pytest.mark.parametrize(
    "node",
    [
        call("aten.arange.default", HUGE, device={"device": 0}),
        call("aten.full.default", [HUGE, HUGE, HUGE], 1, device={"device": 0}),
        call("aten.expand.default", value(10), [HUGE]),
        call("aten.repeat.default", value(1), [2**16, 2**16]),
        call("aten.zeros.default", [2**31, 2**31], device={"device": 0}),
        call("aten.pad.default", value(1), [HUGE, 0]),
        call("aten.one_hot.default", value(2), HUGE),
    ],
)
def test_sizes_are_refused_before_memory_is_taken(node: Node) -> None:
    with pytest.raises(PeerError):
        read(with_node(node))


@pytest.mark.parametrize(
    "nodes",
    [
        # 2**25 values each, and 2**50 between the two: a loss that expands both, and an operator made of others
        (call("aten.mse_loss.default", value(11), value(12)),),
        (call("aten.cosine_similarity.default", value(11), value(12), -1),),
    ],
)
def test_what_an_operator_holds_on_its_way_is_bounded(nodes: tuple[Node, ...]) -> None:
    column = call("aten.expand.default", value(10), [2**25, 1])
    row = call("aten.expand.default", value(10), [1, 2**25])
    with pytest.raises(PeerError, match=r"an operator takes|expanded"):
        read(with_node(column, row, *nodes))


def test_expected_memory_counts_what_autograd_keeps_and_the_optimizer() -> None:
    made = program()
    adamw, sgd = dry_run(made, 4), dry_run(made, 4, inner="sgd")
    assert adamw.expected_bytes - sgd.expected_bytes == 4 * made.size
    assert dry_run(made, 64, micro_batch=4).expected_bytes == adamw.expected_bytes
    assert dry_run(made, 4, precision="bf16").expected_bytes < adamw.expected_bytes < adamw.memory_bytes + 8 * made.size
    # the head's product: forward, and backward twice; two operations for each of width * vocab * tokens
    assert adamw.flops == 3 * 2 * 8 * VOCAB * 4 * CONTEXT
    assert dry_run(made, 64, micro_batch=4).flops == 16 * adamw.flops


def test_the_memory_budget_counts_all_values() -> None:
    node = call("aten.expand.default", value(10), [1_000_000])
    made = Program(with_node(node), program().constants)
    assert dry_run(made, 2, 8_000_000).memory_bytes > 4_000_000
    with pytest.raises(OversizedError, match="at most 3,999,999 are given"):
        dry_run(made, 2, 3_999_999)


@pytest.mark.parametrize(
    "node",
    [
        call("aten.split.Tensor", value(11), 1),
        call("aten.unbind.int", value(11)),
        call("aten.chunk.default", value(11), HUGE),
    ],
)
def test_the_number_of_pieces_is_bounded(node: Node) -> None:
    many = call("aten.expand.default", value(10), [MAX_PIECES + 1])
    with pytest.raises(OversizedError, match="pieces"):
        read(with_node(many, node))


def test_the_largest_number_of_pieces_is_allowed() -> None:
    many = call("aten.expand.default", value(10), [MAX_PIECES])
    split = call("aten.split.Tensor", value(11), 1)
    last = call("item", value(12), MAX_PIECES - 1)
    assert read(with_node(many, split, last)).graph.train.nodes[-1] == last


def test_integers_of_a_program_stay_small() -> None:
    size = call("aten.sym_size.int", value(2), 1)
    squares = [call("int.mul", value(11 + i), value(11 + i)) for i in range(30)]
    with pytest.raises(MalformedError, match="beyond"):
        read(with_node(size, *squares))
    with pytest.raises(MalformedError, match="division by zero"):
        read(with_node(size, call("int.floordiv", value(11), 0)))
    with pytest.raises(MalformedError, match="no integer"):
        read(with_node(call("int.add", value(0), value(1))))


def test_batch_sizes_other_than_the_fixed_one_are_refused() -> None:
    made = Program(graph(VOCAB, batch=4), program().constants)
    assert dry_run(made, 4).memory_bytes > 0
    with pytest.raises(MalformedError, match="batches of 4, not 8"):
        dry_run(made, 8)


@pytest.mark.parametrize(
    "changes",
    [
        {"output": 11},
        {"output": 7},  # not a scalar
        {"output": 4},  # a constant: nothing to train
        {"inputs": (GraphInput(kind="parameter", index=2),)},
        {"inputs": ()},
        {"constants": ()},
        {"constants": ("scale", "scale")},
        {"constants": ("other",)},
        {"state": {"head": "nowhere"}},
        {"samples": (Sample(dtype="complex64", shape=()), Sample(dtype="int64", shape=(8,)))},
        {"nodes": (call("aten.neg.default", value(5)),)},  # its own value
        {"nodes": (call("aten.neg.default", value(-1)),)},
        {"nodes": (call("aten.neg.default", {"float": "0x1.8p1"}),)},  # not how 3.0 is written
        {"nodes": (call("aten.neg.default", {"float": "1" * 40}),)},
        {"nodes": (call("aten.neg.default", {"file": "/etc/passwd"}),)},
        {"nodes": (call("aten.neg.default", {"value": 0, "float": "nan"}),)},
        {"nodes": (call("aten.neg.default", {"dtype": "complex64"}),)},
        {"nodes": (call("aten.neg.default", [[[[1]]]]),)},
        {"nodes": (call("aten.neg.default", [0] * (MAX_LIST + 1)),)},
        {"nodes": (call("aten.neg.default", "x" * 65),)},
        {"nodes": (call("aten.neg.default", value(0), nonsense=1),), "output": 5},
    ],
)
def test_structure_that_does_not_fit_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(PeerError):
        read(graph(VOCAB, **changes))


def test_floats_are_refused_where_integers_are_meant() -> None:
    data = program().to_bytes()
    old = encode(graph(VOCAB))
    new = old.replace(b'"op":"aten.mul.Tensor"', b'"op":"aten.mul.Tensor"', 1).replace(b"[-1,", b"[1.5,", 1)
    assert new != old
    forged = struct.pack("<4sII", b"GDFP", 2, len(new)) + new + data[12 + len(old) :]
    with pytest.raises(MalformedError, match="no argument"):
        Program.from_bytes(forged)


def test_containers_that_are_not_canonical_are_refused() -> None:
    data = program().to_bytes()
    length = struct.unpack_from("<I", data, 8)[0]
    constants = safetensors.torch.save({"scale": torch.tensor(2.0)}, metadata={"note": "hidden"})
    too_long = struct.pack("<4sII", b"GDFP", 2, MAX_GRAPH_BYTES + 1) + b" " * (MAX_GRAPH_BYTES + 1)
    for other in (
        b"",
        data[:12],
        data[:-1],
        data + b"\0",
        b"GDFX" + data[4:],
        data[:4] + b"\1" + data[5:],
        data[:8] + struct.pack("<I", length + 1) + data[12:],
        data[: 12 + length] + constants,
        too_long,
    ):
        with pytest.raises(PeerError):
            Program.from_bytes(other)


def test_constants_of_other_types_are_refused() -> None:
    for tensor in (
        torch.zeros(2, dtype=torch.complex64),
        torch.zeros([1] * 9),
        torch.zeros(2, dtype=torch.float8_e5m2),
    ):
        with pytest.raises(PeerError):
            read(graph(VOCAB), {"scale": tensor})


def test_empty_and_oversized_parameters_are_refused() -> None:
    for shape in ((0,), (2**20, 2**12)):
        table = Parameter(name="table", shape=shape, group=0)
        bad = graph(VOCAB, parameters=(table, Parameter(name="head", shape=(1,), group=0)))
        with pytest.raises(PeerError):
            check_structure(Program(bad, program().constants))


def recurrent(name: str, *, layers: int, states: int, steps: int) -> Graph:
    """The example with a recurrent operator beside it, whose sizes are free."""
    made = graph(dataset().vocab)
    first = len(made.train.inputs) + len(made.train.nodes)
    zeros = [
        Node(op="aten.zeros.default", args=[[steps, 1, 1]], kwargs={}),
        Node(op="aten.zeros.default", args=[[states, 1, 1]], kwargs={}),
        Node(op="aten.zeros.default", args=[[1, 1]], kwargs={}),
    ]
    weights = [{"value": first + 2}] * 2 * layers
    state: Any = [{"value": first + 1}] * 2 if name == "lstm" else {"value": first + 1}
    arguments = [{"value": first}, state, weights, False, layers, {"float": (0.0).hex()}, True, False, False]
    call = Node(op=f"aten.{name}.input", args=arguments, kwargs={})
    train = msgspec.structs.replace(made.train, nodes=(*made.train.nodes, *zeros, call))
    return msgspec.structs.replace(made, train=train)


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
@pytest.mark.parametrize(
    "sizes",
    [
        {"layers": 1, "states": 10_000_000, "steps": 2},
        {"layers": 1, "states": 1, "steps": 1_000_000},
        {"layers": 65, "states": 65, "steps": 2},
    ],
)
def test_recurrent_operators_are_bounded_before_they_run(name: str, sizes: dict[str, int]) -> None:
    """They take layer by layer and step by step, even on the meta device."""
    program = Program(recurrent(name, **sizes), {"scale": torch.tensor(2.0)})
    with pytest.raises(PeerError, match="recurrent"):
        Program.from_bytes(program.to_bytes())
