"""The tensors of a module as a program holds them: parameters and constants, each once, by the owner's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import ExportedProgram

from gdf_market.errors import UsageError, ensure
from gdf_market.train.graph import DTYPES, MAX_RANK, GraphInput, Parameter
from gdf_market.train.places import own_name


@dataclass
class Tensors:
    """Filled by the translation of each pass.  Tied weights are one tensor with several names in the state."""

    parameters: list[Parameter] = field(default_factory=list)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    state: dict[str, str] = field(default_factory=dict)  # state_dict key -> name
    _owners: dict[tuple[Any, ...], str] = field(default_factory=dict)  # storage -> its one name
    _alive: list[torch.Tensor] = field(default_factory=list)  # a freed storage's address would be given out again
    _places: dict[str, int] = field(default_factory=dict)  # name -> index among the constants or parameters

    def entry(self, exported: ExportedProgram, target: str) -> GraphInput:
        """Return the input for a tensor of an exported program.  Raises UsageError for one that cannot be held."""
        tensor = _find(exported, target)
        name = self._owners.get(_storage(tensor)) or self._new_name(target, tensor)
        trained = isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad
        kind = "parameter" if trained else "constant"
        if name not in self._places:
            self._add(name, tensor, trained)
        self._owners[_storage(tensor)] = name
        self._alive.append(tensor)
        return GraphInput(kind=kind, index=self._places[name])

    def _add(self, name: str, tensor: torch.Tensor, trained: bool) -> None:
        if trained:
            self._places[name] = len(self.parameters)
            self.parameters.append(Parameter(name=name, shape=tuple(tensor.shape), group=0))
            return
        usable = tensor.dtype in DTYPES.values() and tensor.ndim <= MAX_RANK
        ensure(usable, UsageError(f"Tensor {name} is {tensor.dtype}, which a program cannot hold."))
        self._places[name] = len(self.constants)
        self.constants[name] = tensor.detach().clone().contiguous()

    def _new_name(self, target: str, tensor: torch.Tensor) -> str:
        """Literals of the two passes are numbered alike; those that hold the same are one."""
        name = own_name(target)
        while name in self._places:
            held = self.constants.get(name)
            if held is not None and held.dtype == tensor.dtype and torch.equal(held, tensor.detach()):
                return name
            name = f"evaluate.{name}"
        return name

    def add_state(self, exported: ExportedProgram, keys: list[str]) -> None:
        """Note under which names ``state_dict`` knows the tensors that the program holds."""
        for key in keys:
            tensor = _find(exported, key)
            name = self._owners.get(_storage(tensor), own_name(key))
            if name in self._places:
                self.state[own_name(key)] = name


def _find(exported: ExportedProgram, target: str) -> torch.Tensor:
    stored = exported.state_dict.get(target)
    found: torch.Tensor = exported.constants[target] if stored is None else stored
    return found


def _storage(tensor: torch.Tensor) -> tuple[Any, ...]:
    if tensor.numel() == 0:
        return (id(tensor),)  # empty tensors share the address 0
    return (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
