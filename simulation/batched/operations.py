"""Operations on tensors of many clients at once, with the bits of each client's own operation.

`torch.func.vmap` would give most operations other bits: it adds up in another order, multiplies by other
kernels, and the ends of vectors are rounded in another way than their middle. So an operation goes one of
these ways:

    exact         it moves numbers, or rounds each of them correctly: vmap has the same bits
    in whole      it works by vectors, and the elements of every client fill whole vectors
    products      by a batched product if that has the bits of single products; each shape is tried once
    one by one    everything else: the same operation for each client

Kernels choose their way by the addresses of their operands, too. Tensors of PyTorch begin at multiples of 64
bytes, so the part of every client does as well wherever that matters.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from hansa.common.values.errors import HansaError

ALIGN = 64  # bytes
VECTOR = 32  # numbers: twice as many as the widest vectors hold, as loops are unrolled

MOVES = (
    *("__get__", "__getitem__", "__len__", "cat", "chunk", "clone", "concat", "contiguous", "detach", "dim"),
    *("expand", "expand_as", "flatten", "float", "is_contiguous", "is_floating_point", "movedim", "narrow"),
    *(
        "ndimension",
        "numel",
        "permute",
        "reshape",
        "reshape_as",
        "select",
        "size",
        "split",
        "squeeze",
        "stack",
    ),
    *("stride", "swapaxes", "t", "to", "transpose", "unbind", "unflatten", "unsqueeze", "view", "view_as"),
)
ROUNDED = (
    *("__add__", "__iadd__", "__imul__", "__mul__", "__neg__", "__radd__", "__rmul__", "__rsub__", "__sub__"),
    *("__truediv__", "abs", "add", "add_", "clamp", "clamp_max", "clamp_min", "div", "eq", "ge", "gt"),
    *("hardtanh", "le", "leaky_relu", "lt", "masked_fill", "max_pool1d", "max_pool2d", "maximum", "minimum"),
    *("mul", "mul_", "ne", "neg", "relu", "relu6", "relu_", "sqrt", "sub", "sub_", "threshold", "where"),
)
EXACT = frozenset((*MOVES, *ROUNDED))
BY_VECTORS = frozenset(("celu", "elu", "exp", "gelu", "log", "selu", "sigmoid", "silu", "softplus", "tanh"))
OPERATORS = frozenset(("__matmul__", "__pow__", "__rmatmul__", "__rpow__", "__rtruediv__"))
# As `cross_entropy` hands them on; with anything else it is computed one by one.
USUAL_LOSS = {"weight": None, "ignore_index": -100, "reduction": "mean", "label_smoothing": 0.0}

Rule = Callable[[Sequence[torch.Tensor]], torch.Tensor]


class NotBatched(HansaError):
    """Clients cannot be trained in blocks, for the reason given."""


class SameBits(TorchFunctionMode):
    """Within a function that `vmap` calls: every operation has the bits that it has for a single client."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Send an operation its way."""
        kwargs, name = kwargs or {}, func.__name__
        if name in EXACT and "alpha" not in kwargs:
            return func(*args, **kwargs)
        call = _Call(func, args, kwargs)
        if not call.tensors:
            return func(*args, **kwargs)
        if name == "linear" and not kwargs and call.tensors[0].ndim > 1:
            return call.stacked(_linear)
        if func is functional.cross_entropy and _is_usual_loss(call):
            return call.stacked(_cross_entropy)
        if kwargs.get("inplace") or (name.endswith("_") and name not in OPERATORS):
            raise NotBatched(f"the operation {name} changes its operand in place")
        return call.stacked(call.in_whole if name in BY_VECTORS else call.one_by_one)


class _Call:
    """An operation and its arguments; the tensors among them can be replaced."""

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._func, self._args, self._kwargs = func, args, kwargs
        self.tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
        nested = [each for each in (*args, *kwargs.values()) if isinstance(each, list | tuple)]
        if any(isinstance(each, torch.Tensor) for group in nested for each in group):
            raise NotBatched(f"the operation {func.__name__} takes lists of tensors")

    @property
    def options(self) -> dict[str, Any]:
        """Its arguments by keyword."""
        return self._kwargs

    def stacked(self, rule: Rule) -> Any:
        """Apply a rule to the tensors of all clients."""
        return _Stacked.apply(rule, self.plain, *self.tensors)  # type: ignore[no-untyped-call]

    def plain(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Carry it out with other tensors."""
        rest = iter(tensors)
        args = [next(rest) if isinstance(each, torch.Tensor) else each for each in self._args]
        kwargs = {
            name: next(rest) if isinstance(each, torch.Tensor) else each
            for name, each in self._kwargs.items()
        }
        return self._func(*args, **kwargs)

    def in_whole(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Carry out an operation on elements for all clients at once, if no vector holds those of two."""
        if len(tensors) == 1 and tensors[0][0].numel() % VECTOR == 0 and tensors[0].dtype == torch.float32:
            result: torch.Tensor = self.plain([tensors[0].contiguous()])
            return result
        return self.one_by_one(tensors)

    def one_by_one(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Carry it out for each client."""
        columns = [_Split.apply(each) for each in tensors]  # type: ignore[no-untyped-call]
        results = [self.plain(row) for row in zip(*columns, strict=True)]
        if not all(isinstance(each, torch.Tensor) for each in results):
            raise NotBatched(f"the operation {self._func.__name__} does not return a tensor")
        joined: torch.Tensor = _Join.apply(*results)  # type: ignore[no-untyped-call]
        return joined


class _Stacked(torch.autograd.Function):
    """Where `vmap` hands over tensors with one row for each client; gradients are found as usual."""

    @staticmethod
    def forward(_rule: Rule, plain: Rule, *tensors: torch.Tensor) -> torch.Tensor:
        """Called if no tensor depends on the client."""
        return plain(tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Remember nothing."""

    @staticmethod
    def vmap(
        info: Any, dims: Sequence[int | None], rule: Rule, _plain: Rule, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, int]:
        """Apply the rule."""
        stacked = [
            each.expand(info.batch_size, *each.shape) if dim is None else each.movedim(dim, 0)
            for each, dim in zip(tensors, dims[2:], strict=True)
        ]
        return rule(stacked), 0


class _Split(torch.autograd.Function):
    """The rows of a tensor."""

    @staticmethod
    def forward(_ctx: Any, whole: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(aligned(whole).unbind(0))

    @staticmethod
    def backward(_ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return torch.stack(grads)


class _Join(torch.autograd.Function):
    """A tensor of rows."""

    @staticmethod
    def forward(_ctx: Any, *rows: torch.Tensor) -> torch.Tensor:
        return torch.stack(rows)

    @staticmethod
    def backward(_ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(aligned(grad).unbind(0))


def aligned(whole: torch.Tensor) -> torch.Tensor:
    """Return a tensor, or a copy of it, each row of which is without gaps and begins at a multiple of 64."""
    row, size = whole[0], whole.element_size()
    if row.is_contiguous() and whole.stride(0) * size % ALIGN == 0 == whole.data_ptr() % ALIGN:
        return whole
    width = -(-row.numel() * size // ALIGN) * ALIGN // size
    copy = whole.new_empty(len(whole), width)[:, : row.numel()].view(whole.shape)
    return copy.copy_(whole)


# Linear layers.


def _linear(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    inputs, weight, *bias = tensors
    rows = inputs.reshape(len(inputs), -1, inputs.shape[-1])
    last = bias[0] if bias else None
    outputs: torch.Tensor = _Linear.apply(rows, weight, last)  # type: ignore[no-untyped-call]
    return outputs.reshape(*inputs.shape[:-1], -1)


class _Linear(torch.autograd.Function):
    """Linear layers of all clients, each with weights of its own."""

    @staticmethod
    def forward(
        ctx: Any, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        inputs, weight = aligned(inputs), aligned(weight)
        ctx.save_for_backward(inputs, weight)
        return _product(inputs, weight.transpose(1, 2), bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        grad = aligned(grad)
        wanted = ctx.needs_input_grad
        return (
            _product(grad, weight) if wanted[0] else None,
            _product(grad.transpose(1, 2), inputs) if wanted[1] else None,
            grad.sum(1) if wanted[2] else None,
        )


_tried: dict[tuple[object, ...], bool] = {}  # whether batched products have the bits of single ones, by shape


def _product(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Multiply the matrices of each client, as `mm` or `addmm` would."""
    kind = (a.dtype, a.shape, a.stride(), b.shape, b.stride(), bias is None)
    if kind not in _tried:
        generator = torch.Generator().manual_seed(1990)
        some = [torch.empty_strided(each.shape, each.stride(), dtype=a.dtype) for each in (a, b)]
        x, y = (each.normal_(generator=generator) for each in some)
        z = None if bias is None else torch.empty(bias.shape, dtype=a.dtype).normal_(generator=generator)
        _tried[kind] = torch.equal(_batched(x, y, z), _single(x, y, z))
    return _batched(a, b, bias) if _tried[kind] else _single(a, b, bias)


def _batched(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return torch.bmm(a, b) if bias is None else torch.baddbmm(bias.unsqueeze(1), a, b)


def _single(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    if bias is None:
        return torch.stack([torch.mm(*pair) for pair in zip(a.unbind(0), b.unbind(0), strict=True)])
    rows = zip(bias.unbind(0), a.unbind(0), b.unbind(0), strict=True)
    return torch.stack([torch.addmm(*row) for row in rows])


# The usual loss of classifiers.


def _is_usual_loss(call: _Call) -> bool:
    usual = all(call.options.get(name, value) == value for name, value in USUAL_LOSS.items())
    return usual and [each.ndim for each in call.tensors] == [2, 1]


def _cross_entropy(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    scores, targets = tensors
    # A kernel for rows: it treats each of them by itself, wherever it is.
    logarithms = functional.log_softmax(scores.contiguous(), dim=2)
    losses: torch.Tensor = _Likelihood.apply(logarithms, targets)  # type: ignore[no-untyped-call]
    return losses


class _Likelihood(torch.autograd.Function):
    """The mean negative logarithm of each client's probabilities; only its sum depends on the order."""

    @staticmethod
    def forward(ctx: Any, logarithms: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(targets)
        ctx.shape = logarithms.shape
        rows = zip(logarithms.unbind(0), targets.unbind(0), strict=True)
        return torch.stack([functional.nll_loss(*row) for row in rows])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (targets,) = ctx.saved_tensors
        each = (-(grad / targets.shape[1]))[:, None, None].expand(*targets.shape, 1)
        return grad.new_zeros(ctx.shape).scatter_(2, targets.unsqueeze(2), each), None
