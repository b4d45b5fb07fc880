"""Turns the owner's PyTorch module into a program, on the owner's machine, with ``torch.export``.

What cannot be a pure function of parameters and samples (dropout, batch
statistics, Python side effects) and every operator off the allow-list is
refused with its name and the owner's line.
"""

from __future__ import annotations

import logging
import operator
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.export import ExportedProgram

from gdf_market.errors import PeerError, UsageError, ensure
from gdf_market.train.dry_run import dry_run
from gdf_market.train.graph import (
    DTYPES,
    MAX_RANK,
    Graph,
    GraphInput,
    Node,
    Parameter,
    Sample,
    Value,
    write_argument,
)
from gdf_market.train.operators import ATEN, ITEM
from gdf_market.train.program import Program, check_structure

if TYPE_CHECKING:
    from gdf_market.train.job import Job

_INTEGER_OPERATORS = {
    operator.add: "int.add",
    operator.sub: "int.sub",
    operator.mul: "int.mul",
    operator.floordiv: "int.floordiv",
    operator.getitem: ITEM,
}
# Whether a view is possible depends on strides, which differ between devices; a reshape gives the same values.
_RENAMED = {"aten.view.default": "aten.reshape.default"}
_IDENTITIES = {"aten.dropout.default", "aten.feature_dropout.default", "aten.dropout_.default"}
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in \S+')
_LIBRARIES = ("site-packages", "dist-packages")

Loss = Callable[..., torch.Tensor]


class _WithLoss(nn.Module):
    """The owner's module followed by its loss; the last sample is the target."""

    def __init__(self, model: nn.Module, loss: Loss | None) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, *samples: torch.Tensor) -> torch.Tensor:
        if self.loss is None:
            result: torch.Tensor = self.model(*samples)
            return result
        return self.loss(self.model(*samples[:-1]), samples[-1])


def capture_module(model: nn.Module, samples: Sequence[torch.Tensor], loss: Loss | None = None) -> Program:
    """Return the program of ``model`` (and ``loss``) for batches shaped like ``samples``.

    The first dimension of each sample is the batch; the program takes any
    batch size if the module does, else the one of ``samples``.  Raises
    UsageError naming what is refused, where, and what to do.
    """
    wrapped = _WithLoss(model, loss)
    _check_parameters(wrapped)
    _check_forward(wrapped, samples)
    exported, batch = _export(wrapped, tuple(samples))
    program = _Translation(exported, wrapped).program(samples, batch)
    try:
        check_structure(program)
        dry_run(program, len(samples[0]))
    except PeerError as error:
        raise UsageError(f"The model cannot be shipped: {error}.") from None
    return program


def capture(job: Job) -> Program:
    """Return the program of a job's model and loss.  Raises UsageError as ``capture_module`` does."""
    shape = (job.batch, job.context)
    tokens = torch.arange(job.batch * job.context).reshape(shape) % job.dataset.vocab
    tokens[0, 0] = job.dataset.vocab - 1  # the largest token has to be in the model's vocabulary
    return capture_module(job.model, (tokens, tokens.roll(1, 0)), job.loss)


def initial_parameters(model: nn.Module, program: Program) -> Any:
    """Return f32[n]: the module's trained parameters in the program's order."""
    known = dict(model.named_parameters(remove_duplicate=False))
    return program.flatten([known[parameter.name] for parameter in program.graph.parameters])


def _check_parameters(wrapped: nn.Module) -> None:
    trained = [(name, p) for name, p in wrapped.named_parameters() if p.requires_grad]
    ensure(
        bool(trained), UsageError("The model has no parameter with requires_grad=True, so there is nothing to train.")
    )
    for name, parameter in wrapped.named_parameters():
        ensure(
            name.startswith("model.") or not parameter.requires_grad,
            UsageError(f"The loss has a trained parameter {name}; put it into the model."),
        )
        ensure(
            parameter.dtype is torch.float32 or not parameter.requires_grad,
            UsageError(f"Parameter {_own(name)} is {parameter.dtype}; train in float32: call model.float()."),
        )
        ensure(
            parameter.device.type == "cpu",
            UsageError(f"Parameter {_own(name)} is on {parameter.device}; call model.cpu() before the job is made."),
        )


def _check_forward(wrapped: nn.Module, samples: Sequence[torch.Tensor]) -> None:
    """Run the module once as the owner wrote it: its own error is the clearest there is."""
    try:
        with torch.no_grad():
            wrapped(*samples)
    except Exception as error:
        shapes = ", ".join(f"{_dtype_name(sample)}{list(sample.shape)}" for sample in samples)
        raise UsageError(
            f"The model's forward does not take a batch ({shapes}): {_summary(error)}. Check its context and "
            "vocabulary against the job's."
        ) from error


def _export(wrapped: nn.Module, samples: tuple[torch.Tensor, ...]) -> tuple[ExportedProgram, int]:
    """Return the exported program and the batch size it is fixed to, 0 for any."""
    samples = tuple(sample.clone() for sample in samples)  # one tensor given twice would be traced as one input
    free = {0: torch.export.Dim("batch", min=1, max=65_536)}
    try:
        return _quietly_export(wrapped, samples, ((free,) * len(samples),)), 0
    except _RefusedError:
        raise
    except Exception:  # many kinds, and none of them documented: try again with the batch size fixed
        try:
            return _quietly_export(wrapped, samples, None), len(samples[0])
        except _RefusedError:
            raise
        except Exception as error:
            raise UsageError(
                f"torch.export cannot trace the model: {_summary(error)}. Its forward must compute one loss from "
                "its tensors without Python branches on their values."
            ) from error


def _quietly_export(wrapped: nn.Module, samples: tuple[torch.Tensor, ...], dynamic: Any) -> ExportedProgram:
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # a failed first attempt is no news to the owner
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported = torch.export.export(wrapped, samples, dynamic_shapes=dynamic, strict=False)
            _refuse_randomness(exported)
            return exported.run_decompositions({}) if _mutates(exported) else exported  # {}: only functionalise
    finally:
        logger.setLevel(level)


def _mutates(exported: ExportedProgram) -> bool:
    targets = (node.target for node in exported.graph.nodes if node.op == "call_function")
    return any(isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable for target in targets)


def _refuse_randomness(exported: ExportedProgram) -> None:
    for node in exported.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        name = str(node.target)
        if torch.Tag.nondeterministic_seeded not in node.target.tags or name in ATEN:
            continue
        if name in _IDENTITIES and (node.args[1] == 0 or node.args[2] is False):
            continue
        raise _RefusedError(
            f"{name} draws random numbers{_place(node)}; auditors could not repeat the unit. "
            "Set dropout to p=0 or call model.eval() before the job is made."
        )


class _RefusedError(UsageError):
    """Raised inside the export attempt: trying again with a fixed batch would not help."""


@dataclass
class _Translation:
    """One exported graph on its way to a Graph."""

    exported: ExportedProgram
    wrapped: nn.Module
    values: dict[str, int] = field(default_factory=dict)  # name in the exported graph -> value
    inputs: list[GraphInput] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    parameters: list[Parameter] = field(default_factory=list)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    owners: dict[tuple[Any, ...], str] = field(default_factory=dict)  # storage -> its one name (tied weights)
    samples: int = 0
    output: int = 0

    def program(self, samples: Sequence[torch.Tensor], batch: int) -> Program:
        self._refuse_mutation()
        for node in self.exported.graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node)
        for node in self.exported.graph.nodes:
            if node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                self._result(node)
        constants = dict(sorted(self.constants.items()))
        graph = Graph(
            version=1,
            batch=batch,
            samples=tuple(Sample(dtype=_dtype_name(s), shape=tuple(s.shape[1:])) for s in samples),
            parameters=tuple(self.parameters),
            constants=tuple(constants),
            state=self._state(),
            inputs=tuple(self.inputs),
            nodes=tuple(self.nodes),
            output=self.output,
        )
        return Program(graph, constants)

    def _refuse_mutation(self) -> None:
        signature = self.exported.graph_signature
        changed = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
        ensure(
            not changed,
            UsageError(
                f"The model changes {', '.join(map(_own, changed[:3]))} while it trains (as batch norm does), which is "
                "not supported: use layer or group norm, or call model.eval() before the job is made."
            ),
        )

    def _placeholder(self, node: torch.fx.Node) -> None:
        signature = self.exported.graph_signature
        target = (
            signature.inputs_to_parameters.get(node.name)
            or signature.inputs_to_buffers.get(node.name)
            or signature.inputs_to_lifted_tensor_constants.get(node.name)
        )
        if target is None:
            ensure(
                node.name in signature.user_inputs,
                UsageError(f"The model uses {node.name}, which is no tensor; keep only tensors in forward."),
            )
            entry = GraphInput(kind="sample", index=self.samples)
            self.samples += 1
        else:
            stored = self.exported.state_dict.get(target)
            entry = self._tensor(target, self.exported.constants[target] if stored is None else stored)
        self.values[node.name] = len(self.inputs)
        self.inputs.append(entry)

    def _tensor(self, target: str, tensor: torch.Tensor) -> GraphInput:
        name = self.owners.setdefault(_storage(tensor), _own(target))
        if isinstance(tensor, nn.Parameter) and tensor.requires_grad:
            names = [parameter.name for parameter in self.parameters]
            if name not in names:
                self.parameters.append(Parameter(name=name, shape=tuple(tensor.shape)))
                names.append(name)
            return GraphInput(kind="parameter", index=names.index(name))
        usable = tensor.dtype in DTYPES.values() and tensor.ndim <= MAX_RANK
        ensure(usable, UsageError(f"Tensor {name} is {tensor.dtype}, which a program cannot hold."))
        self.constants.setdefault(name, tensor.detach().clone().contiguous())
        return GraphInput(kind="constant", index=0)  # set by _number_constants, once all are known

    def _state(self) -> dict[str, str]:
        """Number the constants in sorted order, and return the state_dict keys of what the program holds."""
        order = {name: index for index, name in enumerate(sorted(self.constants))}
        placeholders = [node for node in self.exported.graph.nodes if node.op == "placeholder"]
        signature = self.exported.graph_signature
        lifted = {**signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
        targets = {**signature.inputs_to_parameters, **lifted}
        for position, node in enumerate(placeholders):
            if self.inputs[position].kind == "constant":
                name = self._owner(targets[node.name])
                self.inputs[position] = GraphInput(kind="constant", index=order[name])
        held = set(order) | {parameter.name for parameter in self.parameters}
        keys = {_own(key): self._owner(key) for key in self.wrapped.state_dict()}
        return {key: name for key, name in keys.items() if name in held}

    def _owner(self, target: str) -> str:
        stored = self.exported.state_dict.get(target)
        tensor = self.exported.constants[target] if stored is None else stored
        return self.owners.get(_storage(tensor), _own(target))

    def _call(self, node: torch.fx.Node) -> None:
        name = _operator_name(node.target)
        if name in _IDENTITIES:
            assert isinstance(node.args[0], torch.fx.Node)
            self.values[node.name] = self.values[node.args[0].name]
            return
        if not node.users:
            return  # computes nothing that is used; assertions of export are such nodes
        known = name in ATEN or name in _INTEGER_OPERATORS.values()
        ensure(
            known,
            UsageError(
                f"The model uses the operator {name}{_place(node)}, which is not on the list of allowed operators; "
                "write that line with common operators (gdf_market/train/operators.py lists them)."
            ),
        )
        try:
            args = [write_argument(self._read(argument)) for argument in node.args]
            given = {key: value for key, value in node.kwargs.items() if value is not None and key != "layout"}
            kwargs = {key: write_argument(self._read(value)) for key, value in given.items()}
        except TypeError as error:
            raise UsageError(f"The model calls {name}{_place(node)} with {error}, which is not supported.") from None
        self.values[node.name] = len(self.inputs) + len(self.nodes)
        self.nodes.append(Node(op=name, args=args, kwargs=kwargs))

    def _read(self, argument: Any) -> Any:
        if isinstance(argument, torch.fx.Node):
            return Value(self.values[argument.name])
        if isinstance(argument, list | tuple):
            return [self._read(item) for item in argument]
        return argument

    def _result(self, node: torch.fx.Node) -> None:
        results = node.args[0]
        assert isinstance(results, tuple | list)
        loss = results[0] if len(results) == 1 else None
        if not isinstance(loss, torch.fx.Node):
            raise UsageError("The model must return its loss alone, one scalar tensor; give Job a loss otherwise.")
        self.output = self.values[loss.name]


def _operator_name(target: Any) -> str:
    name = _INTEGER_OPERATORS.get(target, str(target))
    return _RENAMED.get(name, name)


def _storage(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)


def _own(name: str) -> str:
    """Return a name as the owner's module knows it."""
    return name.removeprefix("model.")


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _place(node: torch.fx.Node) -> str:
    """Return " in file:line (source)" of the owner's innermost frame, or an empty text."""
    trace = (node.meta.get("stack_trace") or "").splitlines()
    for position in range(len(trace) - 1, -1, -1):
        found = _FRAME.search(trace[position])
        if found and not any(library in found[1] for library in _LIBRARIES) and found[1] != __file__:
            source = trace[position + 1].strip() if position + 1 < len(trace) else ""
            return f" at {found[1]}:{found[2]} ({source})"
    return ""


def _summary(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200].rstrip(".")
